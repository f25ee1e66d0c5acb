"""`inspect` tells what is in a file, for ONNX and for what targets make."""

import dataclasses
import json
import sys

import numpy as np
import onnx
import onnx.parser
import pytest

import deploykit
from deploykit import target
from deploykit.artifact import Artifact, TensorSpec, write_manifest
from deploykit.errors import InvalidFileError, ModelError, VendorError

TEXT = """
    <ir_version: 9, opset_import: ["" : 17]>
    g (float[n,4] x) => (float[n,4] y) { y = MatMul(x, w) }"""


@pytest.fixture
def model(tmp_path):
    proto = onnx.parser.parse_model(TEXT)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((4, 4), np.float32), "w"))
    path = tmp_path / "m.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="w.data", size_threshold=0)
    return path


def test_onnx(model):
    report = deploykit.inspect(model)
    assert report.status == "passed"
    metrics = report.metrics
    assert (metrics["macs"], metrics["parameters"], metrics["opset"]) == (16, 16, 17)
    assert metrics["external_files"] == {"w.data": 64}
    assert metrics["size_bytes"] == model.stat().st_size + 64 == report.artifact.size_bytes
    assert metrics["dynamic_dims"] == {"x": ["n"]}
    json.dumps(report.as_dict())


def test_a_stranger_beside_a_manifest_is_told(model):
    artifact = Artifact.of(model, "onnx", files=("m.onnx", "w.data"), stage="export")
    write_manifest(artifact)
    report = deploykit.inspect(model)
    assert (report.findings, report.artifact.stage) == ([], "export")
    (model.parent / "w.data").write_bytes(bytes(64))
    changed = deploykit.inspect(str(model))
    assert [finding.code for finding in changed.findings] == ["DK130"]
    assert changed.artifact.stage == ""


def test_missing_and_broken_files(tmp_path):
    with pytest.raises(InvalidFileError, match="no such model"):
        deploykit.inspect(tmp_path / "m.onnx")
    with pytest.raises(InvalidFileError, match="no such"):
        deploykit.inspect(tmp_path / "m.xml")
    (tmp_path / "m.bin").write_bytes(b"PK\x05\x06" + bytes(18))
    with pytest.raises(ModelError, match="a zip archive"):
        deploykit.inspect(tmp_path / "m.bin")


def test_an_onnx_file_of_another_name(model):
    assert deploykit.inspect(model.rename(model.with_name("blob"))).metrics["opset"] == 17


@pytest.fixture
def strange_target(tmp_path, monkeypatch):
    """A third party's target whose look into files runs in a worker."""
    (tmp_path / "strange_vendor.py").write_text(
        "import os\n"
        "def look(path):\n"
        "    print('vendor noise')\n"
        "    if os.path.getsize(path) > 5: raise ValueError('no magic')\n"
        "    spec = {'name': 'x', 'dtype': 'float32', 'shape': [1, 'n']}\n"
        "    return {'inputs': [spec], 'outputs': None, 'precision': 'fp16', 'layers': 3,\n"
        "            'files': ['m.odd', 'm.bin']}\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    module = type(sys)("strange_target")
    module.TARGET = target.Target(
        name="strange",
        title="Strange",
        suffix=".odd",
        format="odd",
        extra=None,
        packages=(),
        distributions=(),
        inspect="strange_vendor:look",
        worker="strange",
    )
    monkeypatch.setitem(sys.modules, "strange_target", module)
    monkeypatch.setitem(target._TABLE, "strange", "strange_target:TARGET")
    return module


@pytest.mark.usefixtures("strange_target")
def test_other_formats_are_looked_into_by_their_target(tmp_path, capfd):
    path = tmp_path / "m.odd"
    path.write_bytes(b"abc")
    (tmp_path / "m.bin").write_bytes(bytes(10))
    report = deploykit.inspect(path)
    assert report.metrics["layers"] == 3
    assert report.artifact.inputs == (TensorSpec("x", "float32", (1, "n")),)
    assert (report.artifact.precision, report.artifact.size_bytes) == ("fp16", 13)
    assert capfd.readouterr().out == ""
    outputs = (TensorSpec("y", "float32", (1,)),)
    write_manifest(dataclasses.replace(report.artifact, outputs=outputs, precision="int8", execution="real"))
    again = deploykit.inspect(path).artifact
    assert (again.outputs, again.precision, again.execution) == (outputs, "int8", "real")
    path.write_bytes(b"abcdefg")
    with pytest.raises(VendorError, match="no magic"):
        deploykit.inspect(path)


def test_a_target_that_cannot_look(strange_target, tmp_path):
    strange_target.TARGET = dataclasses.replace(strange_target.TARGET, inspect=None)
    (tmp_path / "m.odd").write_bytes(b"abc")
    with pytest.raises(deploykit.errors.UnavailableError, match="Strange"):
        deploykit.inspect(tmp_path / "m.odd")
