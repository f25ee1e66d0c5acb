from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest

import deploykit
from deploykit.artifact import read_manifest
from deploykit.errors import InvalidFileError, OutputError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

MATMUL = """
<ir_version: 8, opset_import: ["" : 17]>
m (float[batch,4] x) => (float[batch,2] y) <float[4,2] w = {1, 2, 3, 4, 5, 6, 7, 8}> { y = MatMul(x, w) }
"""
PICKY = """
<ir_version: 8, opset_import: ["" : 17]>
picky (float[batch] x) => (float[batch] y) <float[2] table = {5, 6}, float thousand = {1000}> {
    far = Mul(x, thousand)
    index = Cast <to = 7> (far)
    y = Gather(table, index)
}
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(MATMUL), tmp_path / "small.onnx")
    return tmp_path / "small.onnx"


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_the_layout_of_an_onnx_model(model: Path, tmp_path: Path) -> None:
    report = deploykit.package(model, as_="repository", output=tmp_path / "models")
    assert report.exit_code == 0
    assert files(tmp_path / "models") == {
        "small/config.pbtxt",
        "small/1/model.onnx",
        "small/1/model.onnx.deploykit.json",
        "small.deploykit.json",
    }
    assert (tmp_path / "models/small/1/model.onnx").read_bytes() == model.read_bytes()
    assert report.artifact is not None
    assert (report.artifact.path, report.artifact.execution) == (tmp_path / "models/small", "real")
    assert report.metrics["trial"]["made"] == {"y": [1, 2]}
    assert report.metrics["max_batch_size"] == 64
    assert "64 rows" in report.findings[0].message


def test_the_manifest_comes_along_and_fits_the_copy(model: Path, tmp_path: Path) -> None:
    deploykit.simplify(model, output=tmp_path / "s.onnx", engine="native", max_growth=2)
    made = read_manifest(tmp_path / "s.onnx")
    assert made is not None
    deploykit.package(tmp_path / "s.onnx", as_="repository", output=tmp_path / "models")
    copied = read_manifest(tmp_path / "models/s/1/model.onnx")
    assert copied is not None
    assert (copied.stage, copied.sha256, copied.files) == ("simplify", made.sha256, ("model.onnx",))
    assert copied.parent_sha256 == made.parent_sha256
    inspected = deploykit.inspect(tmp_path / "models/s/1/model.onnx")
    assert not [finding for finding in inspected.findings if finding.code == "DK130"]


def test_external_data_keeps_the_name_that_the_model_says(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(MATMUL)
    weight = np.arange(8, dtype=np.float32).reshape(4, 2)
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weight, "w"))
    onnx.save(proto, tmp_path / "big.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    report = deploykit.package(tmp_path / "big.onnx", as_="repository", output=tmp_path / "models")
    assert report.exit_code == 0
    assert {"big/1/model.onnx", "big/1/weights.bin"} <= files(tmp_path / "models")


def test_openvino_files_are_renamed_together(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    deploykit.convert(model, to="openvino", output=tmp_path / "net.xml")
    report = deploykit.package(tmp_path / "net.xml", as_="repository", output=tmp_path / "models", max_batch=8)
    assert report.exit_code == 0
    assert {"net/1/model.xml", "net/1/model.bin"} <= files(tmp_path / "models")
    text = (tmp_path / "models/net/config.pbtxt").read_text(encoding="utf-8")
    assert 'backend: "openvino"' in text
    assert "max_batch_size: 8" in text
    assert report.metrics["trial"]["engine"].startswith("openvino")


def test_the_same_model_gives_the_same_bytes(model: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        deploykit.package(model, as_="repository", output=tmp_path / name)
    assert files(tmp_path / "one") == files(tmp_path / "two")
    for name in files(tmp_path / "one"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name


def test_a_second_model_joins_and_the_same_needs_force(model: Path, tmp_path: Path) -> None:
    deploykit.package(model, as_="repository", output=tmp_path / "models")
    deploykit.package(model, as_="repository", output=tmp_path / "models", name="other", max_batch=2)
    assert {"small/1/model.onnx", "other/1/model.onnx"} <= files(tmp_path / "models")
    with pytest.raises(OutputError):
        deploykit.package(model, as_="repository", output=tmp_path / "models")
    deploykit.package(model, as_="repository", output=tmp_path / "models", max_batch=4, force=True)
    assert "max_batch_size: 4" in (tmp_path / "models/small/config.pbtxt").read_text(encoding="utf-8")
    assert "max_batch_size: 2" in (tmp_path / "models/other/config.pbtxt").read_text(encoding="utf-8")


def test_a_model_that_does_not_run_is_not_handed_out(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(PICKY), tmp_path / "picky.onnx")
    report = deploykit.package(tmp_path / "picky.onnx", as_="repository", output=tmp_path / "models")
    assert report.exit_code == 1
    assert report.findings[-1].code == "DK722"
    assert "--data" in report.findings[-1].hint
    assert not (tmp_path / "models").exists()
    np.savez(tmp_path / "d.npz", x=np.zeros((1, 1), np.float32))
    report = deploykit.package(
        tmp_path / "picky.onnx", as_="repository", output=tmp_path / "models", data=str(tmp_path / "d.npz")
    )
    assert report.exit_code == 0


def test_without_a_common_batch_there_is_none(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(MATMUL.replace("[batch,2] y", "[rows,2] y")), tmp_path / "m.onnx")
    report = deploykit.package(tmp_path / "m.onnx", as_="repository", output=tmp_path / "models", max_batch=8)
    assert report.metrics["max_batch_size"] == 0
    assert "no effect" in report.findings[-1].message
    assert "dims: [ -1, 4 ]" in (tmp_path / "models/m/config.pbtxt").read_text(encoding="utf-8")


def test_what_cannot_be_packaged(model: Path, tmp_path: Path) -> None:
    (tmp_path / "m.engine").write_bytes(b"x")
    with pytest.raises(InvalidFileError):  # broken, which matters before that nothing here runs it
        deploykit.package(tmp_path / "m.engine", as_="repository", output=tmp_path / "models")
    with pytest.raises(UsageError):
        deploykit.package(model, as_="repository", output=tmp_path / "models", name="a/b")
    assert not (tmp_path / "models").exists()


def test_serve_takes_what_package_wrote(deploykit_cli: Any, model: Path, tmp_path: Path) -> None:
    done = deploykit_cli("package", model, "--as", "repository", "-o", tmp_path / "models", "--name", "served")
    assert done.code == 0, done.stderr
    import http.client

    process = subprocess.Popen(
        [sys.executable, "-m", "deploykit", "serve", tmp_path / "models", "--http-port", "0", "-q"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert ready["models"] == ["served"]
        connection = http.client.HTTPConnection("127.0.0.1", ready["http"], timeout=60)
        connection.request("POST", "/predict", json.dumps({"x": [[1, 0, 0, 1]]}))
        assert json.loads(connection.getresponse().read()) == {"y": [[8, 10]]}
        process.terminate()
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
