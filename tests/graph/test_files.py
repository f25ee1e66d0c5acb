"""What is called .onnx and is something else is named, at once and without an ONNX library."""

import gzip
import io
import pickle
import subprocess
import sys
import tarfile
import zipfile

import numpy as np
import pytest

from deploykit import graph
from deploykit.errors import DeploykitError, ExitCode, InvalidFileError, ModelError


def zip_of(*names):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name in names:
            archive.writestr(name, b"x" * 64)
    return stream.getvalue()


def tar_of():
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("model.onnx"), io.BytesIO(b""))
    return stream.getvalue()


def npy_of():
    stream = io.BytesIO()
    np.save(stream, np.zeros(3))
    return stream.getvalue()


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
FOREIGN = {
    "html": (b"<!DOCTYPE html>\n<html><body>404</body></html>", "an HTML page"),
    "html without doctype": (b"\n  <HTML><head>", "an HTML page"),
    "git lfs pointer": (LFS, "a Git LFS pointer"),
    "json": (b'{"error": "not found"}', "a JSON file"),
    "text": (b"Not found\n", "a text file"),
    "text in another script": ("не найдено\n".encode() * 400, "a text file"),
    "openvino": (b'<?xml version="1.0"?><net name="m" version="11">', "an XML file"),
    "pickle 2": (pickle.dumps({"a": 1}, protocol=2), "a Python pickle"),
    "pickle 4": (pickle.dumps({"a": 1}, protocol=4), "a Python pickle"),
    "zip": (zip_of("readme.txt"), "a zip archive"),
    "zip with a model": (zip_of("dir/model.onnx"), "'dir/model.onnx' in it"),
    "broken zip": (b"PK\x03\x04" + bytes(100), "a broken zip archive"),
    "checkpoint": (zip_of("archive/data.pkl", "archive/data/0"), "a PyTorch checkpoint"),
    "torchscript": (zip_of("m/data.pkl", "m/code/__torch__.py"), "a TorchScript model"),
    "exported program": (zip_of("m/archive_format", "m/models/model.json"), "a PyTorch exported program"),
    "keras": (zip_of("metadata.json", "config.json", "model.weights.h5"), "a Keras model"),
    "tf2onnx large model": (zip_of("__MODEL_PROTO.onnx", "w0"), "tf2onnx's zip of a large model"),
    "npz": (zip_of("x.npy", "y.npy"), "an .npz file"),
    "npy": (npy_of(), "a NumPy array"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(100), "an HDF5 file"),
    "tflite": (b"\x1c\0\0\0TFL3" + bytes(100), "a TensorFlow Lite model"),
    "ort": (b"\x1c\0\0\0ORTM" + bytes(100), ".ort format"),
    "gzip": (gzip.compress(b"model"), "gzip-compressed"),
    "tar": (tar_of(), "a tar archive"),
    "safetensors": ((2).to_bytes(8, "little") + b"{}" + bytes(8), "a safetensors file"),
    "gguf": (b"GGUF\3\0\0\0" + bytes(100), "a GGUF file"),
    "engine": (b"ftrt" + bytes(100), "a TensorRT engine"),
    "image": (b"\x89PNG\r\n\x1a\n" + bytes(100), "a PNG image"),
}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("function", [graph.check_file, graph.load, graph.describe])
def test_foreign_content_is_named(tmp_path, kind, function):
    content, name = FOREIGN[kind]
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        function(path)
    assert caught.value.code == "DK110"
    assert name in caught.value.message
    assert str(path) in caught.value.message
    assert caught.value.exit_code == ExitCode.INVALID_INPUT


def test_a_pickle_is_not_run(tmp_path):
    marker = tmp_path / "marker"

    class Evil:
        def __reduce__(self):
            return (open, (str(marker), "w"))

    path = tmp_path / "model.onnx"
    path.write_bytes(pickle.dumps(Evil()))
    with pytest.raises(ModelError, match="run code"):
        graph.load(path)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("make", "code", "words"),
    [
        (lambda p: None, "DK101", "no such model"),
        (lambda p: p.write_bytes(b""), "DK104", "0 bytes"),
        (lambda p: p.mkdir(), "DK102", "is a folder"),
        (lambda p: (p.mkdir(), (p / "saved_model.pb").write_bytes(b"x")), "DK102", "SavedModel"),
        (lambda p: (p.mkdir(), (p / "config.json").write_text("{}")), "DK102", "Hugging Face"),
        (lambda p: (p.mkdir(), (p / "Data").mkdir(), (p / "Manifest.json").write_text("{}")), "DK102", "Core ML"),
    ],
)
def test_what_is_no_file_is_named(tmp_path, make, code, words):
    path = tmp_path / "модель 模型.onnx"
    make(path)
    with pytest.raises(InvalidFileError, match=words) as caught:
        graph.check_file(path)
    assert caught.value.code == code
    assert str(path) in caught.value.message


def test_a_folder_with_a_model_suggests_it(tmp_path):
    (tmp_path / "net.onnx").write_bytes(b"\x08\x08")
    with pytest.raises(InvalidFileError) as caught:
        graph.check_kind(tmp_path)
    assert "net.onnx" in caught.value.hint


def test_beyond_the_protobuf_limit_is_refused_before_reading(tmp_path):
    path = tmp_path / "model.onnx"
    with path.open("wb") as stream:
        stream.write(b"\x08\x08\x3a")
        stream.truncate(2**31 + 5)  # a sparse file
    with pytest.raises(ModelError) as caught:
        graph.load(path)
    assert caught.value.code == "DK119"


def test_refusing_imports_no_onnx_library(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_text("Not found")
    code = (
        "import sys\nfrom pathlib import Path\nfrom deploykit import graph\nfrom deploykit.errors import ModelError\n"
        "try: graph.check_kind(Path(sys.argv[1]))\nexcept ModelError: pass\nelse: raise SystemExit('accepted')\n"
        "print([m for m in ('onnx', 'onnx_ir', 'numpy', 'onnxruntime') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_error_is_ours(tmp_path):
    """Random bytes never raise anything but a DeploykitError."""
    rng = np.random.default_rng(0)
    path = tmp_path / "model.onnx"
    for size in [1, 2, 3, 7, 8, 9, 40, 300, 5000] * 20:
        path.write_bytes(rng.integers(0, 256, size, dtype=np.uint8).tobytes())
        with pytest.raises(DeploykitError):
            graph.load(path)
