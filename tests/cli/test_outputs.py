"""Outputs appear whole or not at all, through the real command line."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import onnx
import pytest

if TYPE_CHECKING:
    from pathlib import Path

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
agraph (float[n,64] x) => (float[n,64] y) { c = Constant <value = float[64,64] WEIGHTS> () y = MatMul(x, c) }
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    weights = "{" + ",".join(str(i % 7 / 8) for i in range(64 * 64)) + "}"
    path = tmp_path / "модель 1.onnx"
    onnx.save(onnx.parser.parse_model(MODEL.replace("WEIGHTS", weights)), path)
    return path


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_path_with_spaces_and_another_script(deploykit_cli, model: Path) -> None:
    output = model.with_name("вывод 2.onnx")
    done = deploykit_cli("simplify", model, "-o", output, "--engine", "native", "--json")
    assert done.code == 0, done.stdout
    assert done.json["artifact"]["path"] == str(output)
    assert names(model.parent) == {model.name, output.name, f"{output.name}.deploykit.json"}


def test_an_existing_output_stays_as_it_is_without_force(deploykit_cli, model: Path) -> None:
    output = model.with_name("out.onnx")
    output.write_bytes(b"mine")
    assert deploykit_cli("simplify", model, "-o", output).code == 2
    assert output.read_bytes() == b"mine"
    assert deploykit_cli("simplify", model, "-o", output, "--engine", "native", "--force").code == 0
    assert output.read_bytes() != b"mine"


@pytest.mark.skipif(sys.platform != "linux", reason="the limit on file sizes is set with ulimit")
@pytest.mark.parametrize("existing", [False, True])
def test_a_full_disk_leaves_the_old_file_or_none(model: Path, existing: bool) -> None:
    output = model.with_name("out.onnx")
    if existing:
        output.write_bytes(b"mine")
    before = names(model.parent)
    call = [
        sys.executable,
        "-m",
        "deploykit",
        "simplify",
        model.name,
        "-o",
        "out.onnx",
        "--engine",
        "native",
        "--force",
    ]
    done = subprocess.run(
        ["bash", "-c", 'ulimit -f 4; exec "$@"', "bash", *call, "--json"],
        cwd=model.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    document = json.loads(done.stdout)
    assert (done.returncode, document["findings"][-1]["code"]) == (2, "DK125"), document
    assert names(model.parent) == before
    assert not existing or output.read_bytes() == b"mine"


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is read-only for everyone")
def test_a_read_only_folder_is_refused_before_any_work(deploykit_cli, model: Path) -> None:
    done = deploykit_cli("simplify", model, "-o", "/proc/out.onnx", "--json")
    assert (done.code, done.json["findings"][0]["code"]) == (2, "DK122")


def test_vendor_output_never_reaches_stdout(deploykit_cli, model: Path) -> None:
    pytest.importorskip("openvino")
    done = deploykit_cli(
        "convert", model, "--to", "openvino", "-o", model.with_name("m.xml"), "--json", "--dim", "n=1..4"
    )
    assert done.code == 0, done.stdout + done.stderr
    assert done.json["artifact"]["execution"] == "real"
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("content", "code"),
    [(b"hello, I am a text", "DK110"), (b"\x08\x08\x12\x05\xff\xff", "DK111"), (b"PK\x03\x04", "DK110")],
)
@pytest.mark.parametrize("call", ["check M --target all", "quantize M -o o.onnx --precision fp16"])
def test_a_file_that_is_no_model_is_one_clear_error(
    deploykit_cli, tmp_path: Path, content: bytes, code: str, call: str
) -> None:
    (tmp_path / "M").with_suffix(".onnx").write_bytes(content)
    done = deploykit_cli(*call.replace("M", "M.onnx").split(), "--json", cwd=tmp_path)
    assert done.code == 2, done.stdout
    assert done.json["findings"][0]["code"] == code
    assert names(tmp_path) == {"M.onnx"}


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")
@pytest.mark.parametrize("option", ["--json", "--verbose"])
def test_a_stdout_without_room_is_an_error_in_one_sentence(model: Path, option: str) -> None:
    call = [sys.executable, "-m", "deploykit", "check", model.name, "--target", "tensorrt", option]
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        done = subprocess.run(call, cwd=model.parent, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert "error[DK125]: the result cannot be written to stdout" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="shells close streams differently elsewhere")
def test_a_closed_stdout_changes_no_exit_code(model: Path) -> None:
    call = f"{sys.executable} -m deploykit check '{model.name}' --target tensorrt --json >&-"
    done = subprocess.run(["sh", "-c", call], cwd=model.parent, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(sys.platform != "linux", reason="the limit on file sizes is set with ulimit")
def test_no_room_for_temporary_files_is_no_bug_of_ours(model: Path) -> None:
    call = f"ulimit -f 0; {sys.executable} -m deploykit check '{model.name}' --target openvino"
    done = subprocess.run(["sh", "-c", call], cwd=model.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "error[DK125]" in done.stderr
    assert "Traceback" not in done.stderr
