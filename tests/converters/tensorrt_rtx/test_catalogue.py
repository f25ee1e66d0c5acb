"""The catalogue's TensorRT cases, from quantizing to the engine; 8c is in tests/converters/tensorrt/test_loading.py."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import deploykit
from deploykit.isolation import workers

pytest.importorskip("tensorrt_rtx")
RESIDUAL = """<ir_version: 9, opset_import: ["" : 17]>
residual (float[1,4,8,8] x) => (float[1,4,8,8] y) <float[4,4,1,1] v = {VALUES}, float[4,4,1,1] w = {VALUES}> {
  [first] a = Conv (x, v)
  [active] b = Relu (a)
  [second] c = Conv (b, w)
  [sum] d = Add (c, x)
  [third] y = Conv (d, v)
}""".replace("VALUES", ",".join(f"{0.1 * (k % 5) - 0.2:.1f}" for k in range(16)))
BOXES = """<ir_version: 9, opset_import: ["" : 17]>
boxes (float[1,10,4] boxes, float[1,1,10] scores) => (int64[n,3] kept) <int64 most = {5}, float iou = {0.5}> {
  [suppress] kept = NonMaxSuppression (boxes, scores, most, iou)
}"""


@pytest.fixture(scope="module", autouse=True)
def pool():
    with workers() as found:
        yield found


def engine(model, tmp_path, **options):
    return deploykit.convert(model, to="tensorrt-rtx", output=tmp_path / "m.engine", options={"sm": "89"}, **options)


def test_8a_a_softmax_quantized_for_tensorrt_has_zero_points_of_zero_and_builds(shared, tmp_path):
    case = shared / "cases" / "softmax_symmetric_trt.onnx"
    data = str(shared / "cases" / "softmax_symmetric_trt.in0.npz")
    quantized = tmp_path / "int8.onnx"
    deploykit.quantize(case, output=quantized, precision="int8", calib=data, target="tensorrt-rtx")
    proto = onnx.load(quantized)
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    points = [constants[n.input[2]] for n in proto.graph.node if n.op_type == "QuantizeLinear"]
    assert points
    assert all(point.dtype == np.int8 and not point.any() for point in points)
    assert engine(quantized, tmp_path).exit_code == 0


def test_8b_a_dynamic_batch_asks_for_its_bound_and_builds_with_it(shared, tmp_path):
    case = shared / "cases" / "dynamic_batch_reshape.onnx"
    (found,) = [f for f in engine(case, tmp_path).findings if f.severity == "error"]
    assert found.code == "DK520"
    option, value = found.hint.split()[:2]
    assert option == "--dim"
    report = engine(case, tmp_path, dims=[value])
    assert report.exit_code == 0
    assert report.metrics["profiles"]


def test_8d_the_residual_of_an_add_is_quantized_and_builds(tmp_path):
    model = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(RESIDUAL), model)
    calib = tmp_path / "c.npz"
    np.savez(calib, x=np.random.default_rng(0).normal(size=(8, 4, 8, 8)).astype(np.float32))
    quantized = tmp_path / "int8.onnx"
    deploykit.quantize(model, output=quantized, precision="int8", calib=str(calib), target="tensorrt-rtx")
    graph = onnx.load(quantized).graph
    made = {output: node.op_type for node in graph.node for output in node.output}
    (add,) = [node for node in graph.node if node.op_type == "Add"]
    assert [made[name] for name in add.input] == ["DequantizeLinear", "DequantizeLinear"]
    report = engine(quantized, tmp_path)
    assert report.exit_code == 0, [f.message for f in report.findings]
    assert report.artifact.precision == "int8"


def test_8e_what_the_builder_does_not_take_is_named_and_another_version_may_take_it(tmp_path):
    model = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(BOXES), model)
    report = engine(model, tmp_path)
    errors = [f for f in report.findings if f.severity == "error"]
    assert {(f.node, f.op) for f in errors} == {("suppress", "NonMaxSuppression")}
    classic = deploykit.convert(model, to="tensorrt@10.16", output=tmp_path / "classic")
    assert (classic.exit_code, classic.status) == (3, "passed")
