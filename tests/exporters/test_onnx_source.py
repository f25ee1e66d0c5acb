"""ONNX as a source: cleaned, at the opset that was asked for, and equal to what it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnxruntime
import pytest

import deploykit
from deploykit.errors import UsageError, VendorError
from deploykit.exporters.onnx_source import check_opset, export_job
from deploykit.isolation import workers

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module", autouse=True)
def pool():
    """One worker for the whole module."""
    with workers() as found:
        yield found


def run(path: Path, **feeds: np.ndarray) -> list[np.ndarray]:
    """Outputs of onnxruntime without graph optimisation: the independent side."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


ONNX_TEXT = """
    <ir_version: 8, opset_import: ["": 17]>
    agraph (float[n,4] x, float[4,2] w) => (float[n,2] y) <float[4,2] w = {1,2,3,4,5,6,7,8}>
    { m = MatMul(x, w)
      y = Relu(m) }
"""


def test_onnx_is_cleaned_and_proven(tmp_path):
    onnx.save(onnx.parser.parse_model(ONNX_TEXT), tmp_path / "in.onnx")
    report = deploykit.export(tmp_path / "in.onnx", output=tmp_path / "out.onnx")
    assert [spec.name for spec in report.artifact.inputs] == ["x"]
    assert report.artifact.opset == 17
    assert all(node.name for node in onnx.load(tmp_path / "out.onnx").graph.node)
    assert report.artifact.parent_sha256


@pytest.mark.parametrize("opset", [13, 21])
def test_the_opset_of_onnx_is_changed_when_asked_for(tmp_path, opset):
    onnx.save(onnx.parser.parse_model(ONNX_TEXT), tmp_path / "in.onnx")
    report = deploykit.export(tmp_path / "in.onnx", output=tmp_path / "out.onnx", opset=opset)
    assert report.artifact.opset == opset
    x = np.ones((2, 4), np.float32)
    np.testing.assert_allclose(run(tmp_path / "out.onnx", x=x)[0], [[16, 20], [16, 20]])


def test_inputs_that_contradict_an_onnx_model_are_refused(tmp_path):
    onnx.save(onnx.parser.parse_model(ONNX_TEXT), tmp_path / "in.onnx")
    with pytest.raises(UsageError) as refused:
        deploykit.export(tmp_path / "in.onnx", output=tmp_path / "out.onnx", inputs=["x:float32[n,5]"])
    assert refused.value.code == "DK627"


def test_external_data_is_gathered(tmp_path):
    model = onnx.parser.parse_model(ONNX_TEXT)
    weights = onnx.numpy_helper.to_array(model.graph.initializer[0])
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(model, tmp_path / "in.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    report = deploykit.export(tmp_path / "in.onnx", output=tmp_path / "out.onnx")
    assert report.artifact.files == ("out.onnx",)
    (tmp_path / "w.bin").unlink()
    assert run(tmp_path / "out.onnx", x=np.ones((1, 4), np.float32))[0].tolist() == [[16, 20]]


def test_an_opset_that_an_operator_does_not_have_is_refused(tmp_path):
    text = """
        <ir_version: 9, opset_import: ["": 20]>
        agraph (float[n,4] x) => (float[n,4] y) { y = Gelu(x) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "in.onnx")
    with pytest.raises(VendorError) as refused:
        deploykit.export(tmp_path / "in.onnx", output=tmp_path / "out.onnx", opset=13)
    assert refused.value.code == "DK628"
    assert not (tmp_path / "out.onnx").exists()


def test_real_models_pass(shared_model, tmp_path):
    report = deploykit.export(shared_model("silero_vad/silero_vad.onnx"), output=tmp_path / "out.onnx")
    assert report.exit_code == 0
    assert report.metrics["parity"]["samples"] >= 3
    assert all(row["exact"] for row in report.metrics["parity"]["outputs"])


def test_open_dimensions_take_the_names_and_numbers_of_the_user(tmp_path):
    text = """
        <ir_version: 8, opset_import: ["": 17]>
        agraph (float[n,m] x) => (float[n,m] y) { y = Relu(x) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "in.onnx")
    named = deploykit.export(
        tmp_path / "in.onnx", output=tmp_path / "a.onnx", inputs=["x:float32[batch,7]"], dims=["batch=1..4"]
    )
    assert named.exit_code == 0
    assert [spec.shape for spec in (*named.artifact.inputs, *named.artifact.outputs)] == [("batch", 7), ("batch", 7)]
    fixed = deploykit.export(tmp_path / "in.onnx", output=tmp_path / "b.onnx", dims=["n=2"])
    assert fixed.artifact.outputs[0].shape == (2, "m")


def test_a_range_of_no_dimension_is_refused(tmp_path):
    onnx.save(onnx.parser.parse_model(ONNX_TEXT), tmp_path / "in.onnx")
    with pytest.raises(UsageError) as refused:
        deploykit.export(tmp_path / "in.onnx", output=tmp_path / "out.onnx", dims=["batch=1..4"])
    assert refused.value.code == "DK620"


def test_an_opset_of_the_future_is_a_usage_error():
    with pytest.raises(UsageError, match="there is no opset 99999999999999999999") as caught:
        check_opset(99999999999999999999)
    assert caught.value.code == "DK628"


def test_a_lower_opset_that_cannot_be_names_the_node_and_why(tmp_path):
    text = '<ir_version: 10, opset_import: ["" : 20]> g (float[2] x) => (float[2] y) {[act] y = Gelu(x)}'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    with pytest.raises(VendorError) as raised:
        export_job(str(tmp_path / "m.onnx"), str(tmp_path / "out.onnx"), 17, [], {})
    assert raised.value.code == "DK628"
    assert raised.value.node == "act"
    assert "Gelu, which came with opset 20" in raised.value.message


def test_old_ir_versions_are_raised_to_what_the_opset_asks_for(tmp_path):
    for ir_version, opset, expected in ((3, 9, 8), (6, 11, 8), (9, 21, 10), (10, 17, 10)):
        text = f'<ir_version: {ir_version}, opset_import: ["" : {opset}]> g (float[2] x) => (float[2] y) {{y = Abs(x)}}'
        onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
        facts = export_job(str(tmp_path / "m.onnx"), str(tmp_path / "out.onnx"), None, [], {})
        assert onnx.load(tmp_path / "out.onnx").ir_version == expected
        raised = [finding for finding in facts["findings"] if "IR version" in finding["message"]]
        assert bool(raised) == (ir_version != expected)
