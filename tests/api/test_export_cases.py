"""The modules of the case collection whose verb is export: each is right, or refused with its reason."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import deploykit
from deploykit.errors import ModelError
from deploykit.isolation import workers


@pytest.fixture(scope="module", autouse=True)
def pool():
    with workers() as found:
        yield found


@pytest.fixture
def case(shared):
    return lambda name: f"{shared / 'cases' / 'torch_modules.py'}:{name}"


def run(path, **feeds):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


@pytest.mark.parametrize("exporter", ["auto", "torchscript"])
def test_branch(case, tmp_path, exporter):
    with pytest.raises(ModelError) as raised:
        deploykit.export(case("Branch"), output=tmp_path / "x.onnx", inputs=["x:float32[3]"], exporter=exporter)
    assert (raised.value.code, raised.value.exit_code) == ("DK613", 2)
    assert "x.sum() > 0" in raised.value.context[0]
    assert not list(tmp_path.glob("*"))


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_slice_assign(case, tmp_path, exporter):
    out = tmp_path / "x.onnx"
    report = deploykit.export(case("SliceAssign"), output=out, inputs=["x:float32[2,1]"], exporter=exporter)
    assert report.exit_code == 0
    x = torch.arange(2.0).reshape(2, 1)
    expected = x.repeat(3, 2)
    expected[:2] = x * 2
    np.testing.assert_array_equal(run(out, x=x.numpy())[0], expected.numpy())


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_train_mode(case, tmp_path, exporter):
    out = tmp_path / "x.onnx"
    report = deploykit.export(case("TrainMode"), output=out, inputs=["x:float32[batch,4]"], exporter=exporter)
    assert report.exit_code == 0
    said = next(finding.message for finding in report.findings if finding.code == "DK684")
    assert "b (BatchNorm1d)" in said
    assert "d (Dropout)" in said
    assert "Dropout" not in [node.op_type for node in onnx.load(out).graph.node]
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    first, second = run(out, x=x)[0], run(out, x=x)[0]
    np.testing.assert_array_equal(first, second)
    # Running statistics are 0 and 1 as constructed: the layer is the identity but for epsilon.
    np.testing.assert_allclose(first, x, rtol=1e-4)


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_instance_norm(case, tmp_path, exporter):
    out = tmp_path / "x.onnx"
    source = case("EvalInstanceNorm")
    report = deploykit.export(source, output=out, inputs=["x:float32[batch,3,4,4]"], exporter=exporter)
    assert report.exit_code == 0
    assert "DK684" not in {finding.code for finding in report.findings}
    for node in onnx.load(out).graph.node:
        assert node.op_type != "BatchNormalization"
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 4)).astype(np.float32) * 5
    expected = (x - x.mean((2, 3), keepdims=True)) / np.sqrt(x.var((2, 3), keepdims=True) + 1e-5)
    np.testing.assert_allclose(run(out, x=x)[0], expected, rtol=1e-4, atol=1e-5)


def test_opset16(case, tmp_path):
    out = tmp_path / "x.onnx"
    report = deploykit.export(case("Norm"), output=out, inputs=["x:float32[2,4]"], opset=16)
    assert report.exit_code == 0
    assert report.artifact.opset == 16
    assert [entry.version for entry in onnx.load(out).opset_import if not entry.domain] == [16]


def test_batch1(case, tmp_path):
    np.savez(tmp_path / "one.npz", x=np.ones((1, 4), np.float32))
    out = tmp_path / "x.onnx"
    report = deploykit.export(
        case("FlattenBatch"), output=out, inputs=["x:float32[batch,4]"], sample=tmp_path / "one.npz"
    )
    assert report.exit_code == 0
    assert report.artifact.inputs[0].shape == ("batch", 4)
    assert report.artifact.outputs[0].shape == ("batch", 2)
    assert run(out, x=np.ones((5, 4), np.float32))[0].shape == (5, 2)
    assert {1} < set(report.metrics["parity"]["proven"]["batch"])
    assert len(report.metrics["parity"]["proven"]["batch"]) >= 3
