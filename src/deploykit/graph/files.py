"""What a file called `.onnx` really is, told by its first bytes; standard library only, so that it is instant."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

from deploykit import io
from deploykit.errors import InvalidFileError, ModelError

if TYPE_CHECKING:
    from pathlib import Path

# protobuf cannot hold more in one message, and a model file is one message.
PROTOBUF_LIMIT = 2**31 - 1
_HEAD = 4096

# (offset, magic, what it is, what to do)
_MAGIC: tuple[tuple[int, bytes, str, str], ...] = (
    (
        0,
        b"\x89HDF\r\n\x1a\n",
        "an HDF5 file (Keras .h5 weights or model)",
        "rename it to .h5 and run: deploykit export",
    ),
    (4, b"TFL3", "a TensorFlow Lite model", "rename it to .tflite and run: deploykit export"),
    (4, b"ORTM", "a model in onnxruntime's own .ort format", "use the .onnx file that it was made from"),
    (0, b"\x1f\x8b", "gzip-compressed", "unpack it first: gunzip"),
    (0, b"BZh", "bzip2-compressed", "unpack it first: bunzip2"),
    (0, b"\x28\xb5\x2f\xfd", "zstd-compressed", "unpack it first: unzstd"),
    (0, b"\xfd7zXZ\x00", "xz-compressed", "unpack it first: unxz"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it first"),
    (0, b"Rar!", "a RAR archive", "unpack it first"),
    (257, b"ustar", "a tar archive", "unpack it first: tar xf"),
    (0, b"\x93NUMPY", "a NumPy array (.npy)", "give the model file, not its data"),
    (0, b"GGUF", "a GGUF file (llama.cpp)", "export the original model to ONNX"),
    (0, b"ftrt", "a TensorRT engine", "give the ONNX file that it was built from"),
    (0, b"\x7fELF", "a program or shared library", ""),
    (0, b"MZ", "a Windows program or library", ""),
    (0, b"%PDF", "a PDF document", ""),
    (0, b"\x89PNG", "a PNG image", ""),
    (0, b"\xff\xd8\xff", "a JPEG image", ""),
)
_TEXT: tuple[tuple[bytes, str, str], ...] = (
    (
        b"version https://git-lfs.github.com/spec/",
        "a Git LFS pointer: the model itself was not downloaded",
        "git lfs pull",
    ),
    (b"<!doctype html", "an HTML page, probably an error or login page of the download", "download the model again"),
    (b"<html", "an HTML page, probably an error or login page of the download", "download the model again"),
    (b"<?xml", "an XML file (an OpenVINO model ends in .xml)", "rename it to .xml if it is an OpenVINO model"),
    (b"<net", "an OpenVINO model", "rename it to .xml, with its .bin beside it"),
    (b"{", "a JSON file", "give the .onnx file"),
    (b"7767517", "an ncnn model", "give the ONNX file that it was made from"),
)


def check_kind(path: Path) -> Path:
    """The path, when it is a file that may be ONNX.

    Raises InvalidFileError (missing DK101, folder DK102, unreadable DK103, empty DK104) and ModelError (DK110 for
    another kind of file, which is named; DK119 beyond protobuf's 2 GB).
    """
    if path.is_dir():
        raise _folder(path)
    io.existing_file(path, "model")
    with path.open("rb") as stream:
        head = stream.read(_HEAD)
    found = _recognise(path, head)
    if found is not None:
        what, hint = found
        raise ModelError(f"{path} is not an ONNX model: it is {what}", code="DK110", file=path, hint=hint)
    size = path.stat().st_size
    if size > PROTOBUF_LIMIT:
        raise ModelError(
            f"{path} has {size} bytes, and an ONNX file holds at most {PROTOBUF_LIMIT} (protobuf's limit)",
            code="DK119",
            file=path,
            hint="export it again with the weights in external data",
        )
    return path


def _folder(path: Path) -> InvalidFileError:
    if (path / "saved_model.pb").is_file() or (path / "saved_model.pbtxt").is_file():
        what, hint = "a TensorFlow SavedModel folder", f"deploykit export '{path}' -o model.onnx"
    elif (path / "Manifest.json").is_file() and (path / "Data").is_dir():
        what, hint = "a Core ML package", "give the ONNX file that it was made from"
    elif (path / "config.json").is_file():
        what, hint = "a Hugging Face model folder", f"deploykit export '{path}' -o model.onnx"
    else:
        models = sorted(file.name for file in path.glob("*.onnx"))
        what, hint = "a folder", f"did you mean {path / models[0]}?" if models else "give the .onnx file"
    return InvalidFileError(f"{path} is {what}, and an ONNX file is needed", code="DK102", file=path, hint=hint)


def _recognise(path: Path, head: bytes) -> tuple[str, str] | None:
    """(what the file is, what to do), or None when it may be ONNX."""
    for offset, magic, what, hint in _MAGIC:
        if head[offset : offset + len(magic)] == magic:
            return what, hint
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _zip_kind(path)
    # Pickle protocols 2 to 5; protocol 0 and 1 files are text or begin with an opcode below.
    if head[0] == 0x80 and len(head) > 1 and 2 <= head[1] <= 5:
        return "a Python pickle (PyTorch or scikit-learn), which can run code when it is opened", (
            "export the model to ONNX where it was trained"
        )
    if len(head) > 9 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= path.stat().st_size:
        return "a safetensors file: weights without a model", "deploykit export MODULE:FACTORY --weights FILE"
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    for start, what, hint in _TEXT:
        if text.startswith(start):
            return what, hint
    if _is_text(head):
        return "a text file", "download or export the model again"
    return None


def _is_text(head: bytes) -> bool:
    """Whether every byte is printable; a protobuf begins with a tag and a small number, which are not."""
    if any(byte < 32 and byte not in b"\t\n\r\f\x1b" for byte in head):
        return False
    try:
        head[: len(head) - 3 if len(head) == _HEAD else len(head)].decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _zip_kind(path: Path) -> tuple[str, str]:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return "a broken zip archive", "download it again"
    members = {name.rpartition("/")[2] for name in names}
    if any(name.endswith("data.pkl") for name in names):
        if any("/code/" in name for name in names):
            return "a TorchScript model", "rename it to .pt and run: deploykit export"
        return "a PyTorch checkpoint: weights without a model", "deploykit export MODULE:FACTORY --weights FILE"
    if "archive_format" in members or any(name.endswith("models/model.json") for name in names):
        return "a PyTorch exported program", "rename it to .pt2 and run: deploykit export"
    if "model.weights.h5" in members or ("config.json" in members and "metadata.json" in members):
        return "a Keras model", "rename it to .keras and run: deploykit export"
    if "__MODEL_PROTO.onnx" in members:
        return "tf2onnx's zip of a large model", "unzip it and give the .onnx file inside, with its data beside it"
    if names and all(name.endswith(".npy") for name in names):
        return "an .npz file of arrays", "give the model file, not its data"
    inside = sorted(name for name in names if name.endswith(".onnx"))
    if inside:
        return f"a zip archive with {inside[0]!r} in it", "unzip it first"
    return "a zip archive", "unzip it first"
