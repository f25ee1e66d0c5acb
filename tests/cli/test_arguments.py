"""Usage errors and missing files: one clear message, exit 2, quickly, and without a heavy import, on every command."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from deploykit.cli import arguments
from deploykit.errors import InvalidFileError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

HEAVY = {"torch", "tensorflow", "onnx", "onnx_ir", "onnxruntime", "openvino", "coremltools", "tensorrt_rtx"}
HEAVY |= {"starlette", "numpy", "jinja2", "onnxsim", "onnxslim", "onnxscript"}

# Command line -> code. `m.onnx` and `d.npz` exist (their content is never read), `gone.*` does not.
REFUSALS: dict[str, str] = {
    "export gone.onnx -o o.onnx": "DK101",
    "export gone.py:Net -o o.onnx": "DK101",
    "export m.onnx -o o.xml": "DK123",
    "export m.onnx -o nowhere/o.onnx": "DK121",
    "export m.onnx -o m.onnx": "DK120",
    "export m.onnx": "DK808",
    "export m.onnx -o o.onnx --exporter dynmo": "DK807",
    "export m.onnx -o o.onnx --opset ten": "DK807",
    "export m.onnx -o o.onnx --input x:flot32[1]": "DK340",
    "export m.onnx -o o.onnx --dim batch": "DK341",
    "export m.onnx -o o.onnx --arg K": "DK807",
    "export m.onnx -o o.onnx --weights gone.pt": "DK101",
    "export m.onnx -o o.onnx --sample d.txt": "DK831",
    "simplify gone.onnx -o o.onnx": "DK101",
    "simplify . -o o.onnx": "DK102",
    "simplify empty.onnx -o o.onnx": "DK104",
    "simplify d.npz -o o.onnx": "DK831",
    "simplify m.onnx -o o.onnx --engine onxsim": "DK807",
    "simplify m.onnx -o o.onnx --max-growth 0.5": "DK807",
    "check gone.onnx --target all": "DK101",
    "check m.onnx --target openvno": "DK801",
    "check m.onnx --target openvino,core": "DK801",
    "check m.onnx --target openvino@1999": "DK802",
    "check m.onnx --target all --format yaml": "DK807",
    "check m.onnx": "DK808",
    "check m.onnx --target all --report r.pdf": "DK809",
    "check m.onnx --target all --report nowhere/r.json": "DK121",
    "check m.onnx --target all --report d.txt": "DK809",
    "quantize gone.onnx -o o.onnx --precision fp16": "DK101",
    "quantize m.onnx -o o.onnx --precision int9": "DK807",
    "quantize m.onnx -o o.onnx --precision int8": "DK808",
    "quantize m.onnx -o o.onnx --precision int8 --ranges new.npz": "DK808",
    "quantize m.onnx -o o.onnx --precision int8 --calib gone.npz": "DK101",
    "quantize m.onnx -o o.onnx --precision int8 --calib d.txt": "DK831",
    "quantize m.onnx -o o.onnx --precision fp16 --target tensort": "DK801",
    "quantize m.onnx -o o.onnx --precision fp16 --max-drop 1": "DK808",
    "convert gone.onnx --to openvino -o o.xml": "DK101",
    "convert m.onnx --to openvino -o o.onnx": "DK123",
    "convert m.onnx --to opnvino -o o.xml": "DK801",
    "convert m.onnx --to openvino -o o.xml --option speed=1": "DK803",
    "convert m.onnx --to tensorrt-rtx -o o.engine --profile x=1x3": "DK521",
    "convert m.onnx --to openvino -o o.xml --data gone.npz": "DK101",
    "validate gone.onnx m.onnx": "DK101",
    "validate m.onnx gone.xml": "DK101",
    "validate m.onnx d.txt": "DK804",
    "validate m.onnx m.onnx --samples 0": "DK807",
    "validate m.onnx m.onnx --device tpu": "DK807",
    "bench gone.onnx": "DK101",
    "bench": "DK808",
    "bench m.onnx --batch 0": "DK807",
    "bench m.onnx --data gone": "DK101",
    "serve gone.onnx": "DK101",
    "serve m.onnx --http-port 99999": "DK807",
    "package gone.onnx --as repository -o o": "DK101",
    "package m.onnx --as repo -o o": "DK807",
    "run gone.yaml": "DK101",
    "run m.onnx": "DK808",
    "run m.onnx --to opnvino": "DK801",
    "run m.onnx --to openvino --precision fp17": "DK807",
    "run m.onnx --to openvino --only quantise": "DK807",
    "run gone.onnx --to openvino": "DK101",
    "inspect gone.onnx": "DK101",
    "inspect .": "DK102",
    "explain DK999": "DK832",
    "doctor extra": "DK800",
    "targets --jsn": "DK806",
    "init gone.onnx": "DK101",
    "init m.onnx -o m.onnx": "DK120",
}

SCRIPT = """
import json, sys, time
calls = json.loads(sys.stdin.read())
from deploykit.cli.app import main
import contextlib, io
answers = []
for call in calls:
    out = io.StringIO()
    start = time.process_time()
    with contextlib.redirect_stdout(out):
        code = main([*call.split(" "), "--json"])
    answers.append([code, json.loads(out.getvalue()), time.process_time() - start])
print(json.dumps([answers, sorted({name.partition(".")[0] for name in sys.modules})]))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("usage")
    for name in ("m.onnx", "d.npz", "d.txt"):
        (made / name).write_text("never read", encoding="utf-8")
    (made / "empty.onnx").touch()
    return made


@pytest.fixture(scope="module")
def refused(folder: Path) -> tuple[dict[str, tuple[int, dict, float]], set[str]]:
    """Every refusal in one process, so that one import of anything heavy by any of them is seen."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps(list(REFUSALS)),
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    answers, modules = json.loads(done.stdout)
    return dict(zip(REFUSALS, answers, strict=True)), set(modules)


@pytest.mark.parametrize("call", REFUSALS)
def test_a_wrong_call_is_refused_with_its_code(refused, call: str) -> None:
    code, document, _ = refused[0][call]
    found = document["findings"][0]
    assert found["code"] == REFUSALS[call], found["message"]
    assert (code, document["exit_code"], document["status"]) == (2, 2, "error")


def test_no_refusal_imports_anything_heavy(refused) -> None:
    assert refused[1] & HEAVY == set()


def test_no_refusal_takes_long(refused) -> None:
    assert max(seconds for _, _, seconds in refused[0].values()) < 0.5


def test_nothing_was_written(folder: Path, refused) -> None:
    assert {path.name for path in folder.iterdir()} == {"m.onnx", "d.npz", "d.txt", "empty.onnx"}


def test_a_missing_file_answers_in_under_a_second_from_the_shell(child_seconds) -> None:
    assert min(child_seconds("-m", "deploykit", "validate", "gone.onnx", "gone.xml") for _ in range(3)) < 1


def test_the_data_files_that_are_let_through_are_those_that_are_read() -> None:
    from deploykit.data.dataset import READABLE

    assert arguments.READABLE == READABLE


@pytest.mark.parametrize("text", ["random", "random:7", "d.npz", ".", "package.module:feeds"])
def test_data_may_be_many_things(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> None:
    monkeypatch.chdir(folder)
    assert arguments.data(text, "--data") == text


def test_a_python_file_for_data_must_exist(tmp_path: Path) -> None:
    with pytest.raises(InvalidFileError, match="no such Python file"):
        arguments.data(f"{tmp_path}/gone.py:feeds", "--data")


def test_an_artifact_may_be_a_package_folder(tmp_path: Path) -> None:
    package = tmp_path / "m.mlpackage"
    package.mkdir()
    assert arguments.artifact_file(package) == package


def test_paths_with_spaces_and_other_scripts(tmp_path: Path) -> None:
    path = tmp_path / "модель 1.onnx"
    path.write_text("x", encoding="utf-8")
    assert arguments.onnx_file(path) == path


def test_targets_are_split_at_commas() -> None:
    assert arguments.many_targets(["openvino,coreml", "onnxruntime"]) == ["openvino", "coreml", "onnxruntime"]


def test_all_is_a_target_only_where_it_is_allowed() -> None:
    assert arguments.many_targets(["all"], all_allowed=True) == ["all"]
    with pytest.raises(UsageError, match="no target 'all'"):
        arguments.many_targets(["all"])


def test_pairs_keep_equal_signs_in_values() -> None:
    assert arguments.pairs(["a=b=c", "d="], "--option") == {"a": "b=c", "d": ""}
