"""Sources are recognised without running anything, and what cannot be taken is refused with a way that works."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from pathlib import Path

import pytest

from deploykit.errors import InvalidFileError, ModelError, UsageError
from deploykit.exporters.sources import KINDS, detect, imported_names, public_names, takes


class Trap:
    """Writes a marker file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return (Path.touch, (self.marker,))


def archive(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as made:
        for name, content in members.items():
            made.writestr(name, content)
    return path


LIGHTNING = (
    b"\x80\x02}q\x00(X\x05\x00\x00\x00epochq\x01K\x03X\x19\x00\x00\x00pytorch-lightning_versionq\x02X\x05\x00\x00\x002.5.0q\x03"
    b"ctorch._utils\n_rebuild_tensor_v2\nq\x04u."
)
GLOBALS = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nq\x00ccollections\nOrderedDict\nq\x01."


def make(folder: Path, kind: str) -> Path:
    """A small file or folder of the kind."""
    builders = {
        "onnx": lambda: (folder / "m.onnx", b"\x08\x08"),
        "safetensors": lambda: (folder / "m.safetensors", b"\x08\x00\x00\x00\x00\x00\x00\x00{}      "),
        "hdf5": lambda: (folder / "m.h5", b"\x89HDF\r\n\x1a\n rest"),
        "tflite": lambda: (folder / "m.tflite", b"\x1c\x00\x00\x00TFL3 rest"),
        "config": lambda: (folder / "deploykit.yaml", b"source: m.onnx\n"),
        "pickle": lambda: (folder / "m.pkl", pickle.dumps(Path("x"))),
    }
    archives = {
        "pt2": ("m.pt2", {"m/archive_format": b"pt2"}),
        "torchscript": ("m.pt", {"m/code/a.py": b"", "m/constants.pkl": b"", "m/data.pkl": b""}),
        "torch-state": ("w.pt", {"w/data.pkl": GLOBALS, "w/version": b"3"}),
        "torch-pickle": (
            "w.pt",
            {"w/data.pkl": b"\x80\x02ctorch.nn.modules.linear\nLinear\nq\x00.", "w/version": b"3"},
        ),
        "ultralytics": (
            "yolo.pt",
            {"yolo/data.pkl": b"\x80\x02cultralytics.nn.tasks\nDetectionModel\nq\x00.", "yolo/version": b"3"},
        ),
        "lightning": ("last.ckpt", {"last/data.pkl": LIGHTNING, "last/version": b"3"}),
        "keras": ("m.keras", {"config.json": b"{}", "metadata.json": b"{}", "model.weights.h5": b""}),
        "skops": ("m.skops", {"schema.json": b"{}"}),
    }
    if kind in builders:
        path, content = builders[kind]()
        path.write_bytes(content)
        return path
    if kind in archives:
        name, members = archives[kind]
        return archive(folder / name, members)
    path = folder / "model"
    path.mkdir()
    (path / ("saved_model.pb" if kind == "savedmodel" else "config.json")).write_bytes(b"{}")
    return path


@pytest.mark.parametrize("kind", [name for name in KINDS if name != "python"])
def test_each_kind_is_recognised_by_its_content(tmp_path, kind):
    assert detect(make(tmp_path, kind)).kind.name == kind


@pytest.mark.parametrize("kind", [name for name, row in KINDS.items() if row.via is None])
def test_a_recognised_kind_that_is_not_taken_is_refused_with_a_way(tmp_path, kind):
    path = make(tmp_path, kind)
    with pytest.raises((UsageError, ModelError)) as refused:
        takes(detect(path))
    assert refused.value.exit_code == 2
    assert refused.value.hint
    assert "{" not in refused.value.hint
    assert str(path) in refused.value.message


@pytest.mark.parametrize("kind", ["savedmodel", "keras", "hdf5", "tflite"])
def test_tensorflow_s_kinds_go_to_its_exporter(tmp_path, kind):
    assert takes(detect(make(tmp_path, kind))) == "tensorflow"


def test_python_sources_are_taken_by_file_and_by_module(tmp_path):
    file = tmp_path / "net.py"
    file.write_text("class Net: ...\n")
    by_file, by_module = detect(f"{file}:Net"), detect("package.module:make")
    assert (by_file.path, by_file.factory, takes(by_file)) == (file, "Net", "torch")
    assert (by_module.module, by_module.factory, by_module.path) == ("package.module", "make", None)
    assert by_file.label == "net.py:Net"


def test_a_python_file_without_a_factory_lists_what_it_defines(tmp_path):
    file = tmp_path / "net.py"
    file.write_text("def train(): ...\nclass Net: ...\nclass _Hidden: ...\nx = 1\n")
    assert public_names(file) == ["Net", "train"]
    with pytest.raises(UsageError) as refused:
        detect(str(file))
    assert refused.value.code == "DK603"
    assert refused.value.hint == f"{file}:Net"


@pytest.mark.parametrize("text", ["nowhere.onnx", "nowhere.py:Net", "no folder/model.pt", "nothing"])
def test_a_missing_source_is_said_to_be_missing(text):
    with pytest.raises(InvalidFileError):
        detect(text)


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".jit", ".bin", ".pkl", ".pickle", ".joblib", ".ckpt"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_pickle_is_named_and_never_run(tmp_path, suffix, wrapped):
    marker, path = tmp_path / "marker", tmp_path / f"model{suffix}"
    data = pickle.dumps(Trap(marker))
    if wrapped:
        archive(path, {"model/data.pkl": data, "model/version": b"3"})
    else:
        path.write_bytes(data)
    with pytest.raises(ModelError) as refused:
        takes(detect(path))
    assert refused.value.code == "DK605"
    # Nobody with a PyTorch file is sent to skops.
    assert ("skops" in refused.value.hint) == (suffix in (".pkl", ".pickle", ".joblib") and not wrapped)
    assert not marker.exists()


def test_the_imports_of_a_pickle_are_read_in_both_protocols(tmp_path):
    for protocol in (2, 4):
        names = imported_names(pickle.dumps(Trap(tmp_path / "x"), protocol=protocol))
        assert any("pathlib" in name for name in names)


def test_bytes_that_are_no_pickle_give_no_names():
    assert imported_names(b"\x80\x04\xff\xff\xff") == []


@pytest.mark.parametrize("member", ["../evil.py", "/evil.py", "a/../../evil.py", "..\\evil.py", "C:\\evil.py"])
@pytest.mark.parametrize("suffix", [".keras", ".pt", ".pt2", ".skops"])
def test_an_archive_that_would_write_outside_is_refused_unopened(tmp_path, member, suffix):
    folder = tmp_path / "in"
    folder.mkdir()
    path = archive(folder / f"m{suffix}", {"config.json": b"{}", member: b"boom"})
    with pytest.raises(ModelError) as refused:
        detect(path)
    assert refused.value.code == "DK606"
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["in", path.name]


@pytest.mark.parametrize("name", ["m.keras", "m.tflite", "m.h5", "m.pt", "m.pt2"])
def test_a_file_that_is_not_what_its_name_says_is_refused(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"just some text, nothing else")
    with pytest.raises(ModelError) as refused:
        detect(path)
    assert refused.value.code == "DK601"


def test_a_truncated_archive_is_refused(tmp_path):
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as made:
        made.writestr("m/data.pkl", GLOBALS * 50)
    path = tmp_path / "m.pt"
    path.write_bytes(whole.getvalue()[:60])
    with pytest.raises(ModelError, match="damaged"):
        detect(path)


def test_empty_files_unknown_files_and_plain_folders_are_refused(tmp_path):
    (tmp_path / "empty.pt").touch()
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "folder").mkdir()
    for name, code in (("empty.pt", "DK104"), ("notes.txt", "DK601"), ("folder", "DK601")):
        with pytest.raises((InvalidFileError, UsageError)) as refused:
            detect(tmp_path / name)
        assert refused.value.code == code


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no named pipes")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "m.onnx")
    with pytest.raises(InvalidFileError, match="pipe or device") as caught:
        detect(str(tmp_path / "m.onnx"))
    assert caught.value.code == "DK103"


def test_the_snapshot_in_a_folder_of_the_hub_cache_is_named(tmp_path):
    snapshot = tmp_path / "models--x--y" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    with pytest.raises(UsageError) as refused:
        detect(tmp_path / "models--x--y")
    assert refused.value.hint == f"name the folder inside: {snapshot}"
