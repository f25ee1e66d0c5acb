"""What a SOURCE is: recognised by name and first bytes, with the standard library only and without running anything.

The table says for each kind whether `export` takes it here, and otherwise which way works. Nothing is unpickled: a
pickle is read as a list of opcodes, which names what it would import.
"""

from __future__ import annotations

import ast
import dataclasses
import io as memory
import pickletools
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from deploykit import io
from deploykit.errors import DeploykitError, InvalidFileError, ModelError, UsageError
from deploykit.exporters.huggingface_folder import is_huggingface

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Via = Literal["onnx", "torch", "huggingface", "tensorflow", "sklearn"]


@dataclasses.dataclass(frozen=True, slots=True)
class SourceKind:
    """One kind of model source.

    via: which exporter takes it; None when it is only recognised, and then `way` says what works instead.
    """

    name: str
    title: str
    via: Via | None = None
    way: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """A recognised source: its kind, its file or folder, and the factory's name for Python sources."""

    text: str
    kind: SourceKind
    path: Path | None = None
    module: str | None = None
    factory: str | None = None

    @property
    def label(self) -> str:
        """The source without its folder, for manifests: `model.py:Net`."""
        if self.path is None:
            return self.text
        return f"{self.path.name}:{self.factory}" if self.factory else self.path.name


KINDS: dict[str, SourceKind] = {
    kind.name: kind
    for kind in (
        SourceKind("onnx", "an ONNX model", "onnx"),
        SourceKind("python", "a Python factory of a PyTorch module", "torch"),
        SourceKind("pt2", "a PyTorch exported program", "torch"),
        SourceKind("torchscript", "a TorchScript module", "torch"),
        SourceKind(
            "torch-state",
            "weights saved with torch.save (a state dict), without the module that uses them",
            way="name the module that they belong to: deploykit export model.py:Net --weights {path} -o out.onnx",
        ),
        SourceKind(
            "torch-pickle",
            "a file of torch.save with other objects than tensors, as a whole module is, which runs code when loaded",
            way=(
                "in your own code: torch.save(model.state_dict(), 'weights.pt'), then "
                "deploykit export model.py:Net --weights weights.pt -o out.onnx"
            ),
        ),
        SourceKind(
            "ultralytics",
            "an Ultralytics YOLO checkpoint, a pickle of that package's classes, which runs code when it is loaded",
            way=(
                "where the ultralytics package is and you trust the file: YOLO({path!r}).export(format='onnx'), then "
                "deploykit export MODEL.onnx -o out.onnx"
            ),
        ),
        SourceKind(
            "lightning",
            "a PyTorch Lightning checkpoint: weights and the state of a training, without the module that uses them",
            way="name the module that they belong to: deploykit export model.py:Net --weights {path} -o out.onnx",
        ),
        SourceKind(
            "safetensors",
            "weights without the module that uses them",
            way="deploykit export model.py:Net --weights {path} -o out.onnx",
        ),
        SourceKind("huggingface", "a Hugging Face model folder", "huggingface"),
        SourceKind("savedmodel", "a TensorFlow SavedModel folder", "tensorflow"),
        SourceKind("keras", "a Keras archive", "tensorflow"),
        SourceKind("hdf5", "a Keras HDF5 file", "tensorflow"),
        SourceKind("tflite", "a LiteRT (TensorFlow Lite) model", "tensorflow"),
        SourceKind(
            "skops",
            "a scikit-learn model saved with skops",
            "sklearn",
        ),
        SourceKind(
            "pickle",
            "a Python pickle, which can run any code when it is loaded",
            "sklearn",
        ),
        SourceKind("config", "a deploykit configuration", way="deploykit run {path}"),
    )
}

_PICKLE_SUFFIXES = {".pt", ".pth", ".jit", ".bin", ".pkl", ".pickle", ".joblib", ".ckpt", ".th"}
_ZIP = b"PK\x03\x04"
_HDF5 = b"\x89HDF\r\n\x1a\n"
_TFLITE = b"TFL3"
# What torch.save writes for a plain state dict: anything else in a pickle means a class that would be imported.
_TENSOR_GLOBALS = ("torch._utils", "torch ", "torch.storage", "collections OrderedDict", "torch.nn.parameter", "numpy")
_LIGHTNING = "pytorch-lightning_version"
_MAX_PICKLE_BYTES = 64 << 20
_MANY_CLASSES = 3


def detect(source: str | Path) -> Source:
    """The kind of a source, from its name and first bytes; cheap, and nothing of it is run.

    Raises InvalidFileError (DK101) for a missing file, UsageError (DK601) for one of no known kind, ModelError (DK606)
    for an archive whose members leave its folder.
    """
    text = str(source)
    path = Path(text)
    if not path.exists() and ":" in text:
        found = _python(text)
        if found is not None:
            return found
    if not path.exists():
        raise InvalidFileError(
            f"no such model source: {text}",
            file=text,
            hint="a file, a folder, path/file.py:factory or package.module:factory; quote a path with spaces",
        )
    if path.is_dir():
        return Source(text, _folder_kind(path), path)
    return Source(text, _file_kind(path), path)


def takes(source: Source, *, trust: bool = False) -> Via:
    """Which exporter takes the source; the refusal with the way that works otherwise.

    Raises UsageError (DK602) for a recognised kind that cannot be exported here, ModelError (DK605) for one that would
    run code and is not trusted.
    """
    kind = source.kind
    if kind.name == "pickle" and not trust and source.path is not None:
        from deploykit.exporters.sklearn_pickle import refusal

        raise refusal(source.path)
    if kind.via is not None:
        return kind.via
    way = kind.way.format(path=str(source.path))
    unsafe = kind.name in ("torch-pickle", "ultralytics")
    error: type[DeploykitError] = ModelError if unsafe else UsageError
    refused = "it was not loaded" if unsafe else "export does not take it"
    raise error(
        f"{source.text} is {kind.title}: {refused}",
        code="DK605" if unsafe else "DK602",
        file=source.path,
        hint=way,
    )


def _python(text: str) -> Source | None:
    """`path/file.py:factory` or `package.module:factory`; None when the text is neither."""
    left, _, factory = text.rpartition(":")
    named = bool(factory) and all(part.isidentifier() for part in factory.split("."))
    if left.endswith(".py"):
        if not Path(left).is_file():
            raise InvalidFileError(f"no such Python file: {left}", file=left, hint="check the path before the colon")
        if not named:
            raise _no_factory(Path(left))
        return Source(text, KINDS["python"], Path(left), factory=factory)
    if named and left and all(part.isidentifier() for part in left.split(".")):
        return Source(text, KINDS["python"], module=left, factory=factory)
    return None


def _no_factory(path: Path) -> UsageError:
    names = public_names(path)
    shown = ", ".join(names[:8])
    return UsageError(
        f"{path} is a Python file: name the class or function in it that makes the module",
        code="DK603",
        file=path,
        context=[f"it defines: {shown}"] if names else [],
        hint=f"{path}:{names[0]}" if names else f"{path}:Net",
    )


def public_names(path: Path) -> list[str]:
    """Classes and functions that a Python file defines at its top level, read without running it."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return []
    defined = [node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    # Classes first: a model file's functions are more often training code.
    defined.sort(key=lambda node: isinstance(node, ast.FunctionDef))
    return [node.name for node in defined if not node.name.startswith("_")]


def _folder_kind(path: Path) -> SourceKind:
    if (path / "saved_model.pb").is_file() or (path / "saved_model.pbtxt").is_file():
        return KINDS["savedmodel"]
    if is_huggingface(path):
        return KINDS["huggingface"]
    inner = sorted(file.parent for name in ("*", "snapshots/*") for file in path.glob(f"{name}/config.json"))
    raise UsageError(
        f"{path} is a folder, and not one of a model",
        code="DK601",
        file=path,
        context=["a SavedModel folder has saved_model.pb, a Hugging Face folder has config.json"],
        hint=f"name the folder inside: {inner[0]}" if inner else "name the model file itself",
    )


def _file_kind(path: Path) -> SourceKind:
    head = _head(path)
    suffix = path.suffix.lower()
    if suffix == ".py":
        raise _no_factory(path)
    simple = {
        ".onnx": "onnx",
        ".safetensors": "safetensors",
        ".yaml": "config",
        ".yml": "config",
    }
    if suffix in simple:
        return KINDS[simple[suffix]]
    if head.startswith(_HDF5):
        return KINDS["hdf5"]
    if head[4:8] == _TFLITE:
        return KINDS["tflite"]
    if head.startswith(_ZIP):
        return _zip_kind(path)
    if suffix in _PICKLE_SUFFIXES and head[:1] == b"\x80":
        return _pickle_kind(path.read_bytes() if path.stat().st_size <= _MAX_PICKLE_BYTES else b"", whole=True)
    if suffix in (".joblib", ".pkl", ".pickle"):
        from deploykit.exporters.sklearn_pickle import is_compressed

        if is_compressed(head):
            return KINDS["pickle"]
    raise _unknown(path, head)


def _head(path: Path) -> bytes:
    with io.existing_file(path, "source").open("rb") as stream:
        return stream.read(16)


def _unknown(path: Path, head: bytes) -> DeploykitError:
    suffix = path.suffix.lower()
    expected = {
        ".keras": "a zip archive",
        ".tflite": "a TFL3 flatbuffer",
        ".h5": "HDF5",
        ".hdf5": "HDF5",
        ".pt2": "a zip",
    }
    if suffix in expected or suffix in _PICKLE_SUFFIXES:
        kind = expected.get(suffix, "a pickle or a TorchScript archive")
        return ModelError(
            f"{path} is not what its name says: {suffix} is {kind}, and this starts with {head[:8]!r}",
            code="DK601",
            file=path,
            hint="the file is damaged or misnamed: make it again",
        )
    return UsageError(
        f"{path} is not a model source that deploykit knows",
        code="DK601",
        file=path,
        context=[f"it takes: {', '.join(kind.title for kind in KINDS.values() if kind.via)}"],
        hint="deploykit export --help",
    )


def _zip_kind(path: Path) -> SourceKind:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            _refuse_escapes(path, names)
            tops = {name.partition("/")[2] for name in names}
            if "config.json" in names and ("metadata.json" in names or path.suffix == ".keras"):
                return KINDS["keras"]
            if "schema.json" in names:
                return KINDS["skops"]
            if path.suffix == ".pt2" or any(
                name.endswith(("archive_format", "serialized_exported_program.json")) for name in names
            ):
                return KINDS["pt2"]
            if "constants.pkl" in tops and any(top.startswith("code/") for top in tops):
                return KINDS["torchscript"]
            pickles = [name for name in names if name.endswith("data.pkl")]
            if pickles:
                with archive.open(pickles[0]) as stream:
                    return _pickle_kind(stream.read(_MAX_PICKLE_BYTES), whole=False)
    except (zipfile.BadZipFile, OSError) as problem:
        raise ModelError(
            f"{path} is a damaged archive: {problem}", code="DK601", file=path, hint="download or save it again"
        ) from problem
    if path.suffix == ".keras":
        return KINDS["keras"]
    raise UsageError(
        f"{path} is a zip archive, and not one of a model",
        code="DK601",
        file=path,
        hint="unpack it and name the model inside (tf2onnx --large_model writes such archives)",
    )


def _refuse_escapes(path: Path, names: Iterable[str]) -> None:
    for name in names:
        parts = name.replace("\\", "/").split("/")
        if ".." in parts or name.startswith(("/", "\\")) or (len(name) > 1 and name[1] == ":"):
            raise ModelError(
                f"{path} has a member that would be written outside its folder: {name!r}",
                code="DK606",
                file=path,
                context=["nothing was unpacked"],
                hint="do not use this file: a model saved by its framework has no such member",
            )


def _pickle_kind(data: bytes, *, whole: bool) -> SourceKind:
    """What a pickle would import, from its opcodes: a state dict, a PyTorch module, or any other object."""
    strings: list[str] = []
    names = imported_names(data, strings)
    if any(name.startswith("ultralytics") for name in names):
        return KINDS["ultralytics"]
    if _LIGHTNING in strings:
        return KINDS["lightning"]
    foreign = [name for name in names if not name.startswith(_TENSOR_GLOBALS)]
    if names and not foreign:
        return KINDS["torch-state"]
    # Legacy torch.save files are a row of pickles: the first holds a magic number only.
    return KINDS["torch-pickle" if not whole or any(name.startswith("torch") for name in names) else "pickle"]


def imported_names(data: bytes, strings: list[str] | None = None) -> list[str]:
    """`module name` of everything that unpickling the data would import; nothing is run. strings: gets its strings."""
    found: list[str] = []
    strings = [] if strings is None else strings
    stream = memory.BytesIO(data)
    try:
        while stream.tell() < len(data):
            for opcode, argument, _ in pickletools.genops(stream):
                _note_import(opcode.name, argument, strings, found.append)
    except Exception:  # pickletools raises several kinds for bytes that are no pickle; what was read counts
        return found
    return found


def _note_import(opcode: str, argument: object, strings: list[str], add: Callable[[str], None]) -> None:
    if opcode == "GLOBAL":
        add(str(argument))
    elif opcode == "STACK_GLOBAL" and len(strings) > 1:
        add(f"{strings[-2]} {strings[-1]}")
    elif isinstance(argument, str):
        strings.append(argument)
