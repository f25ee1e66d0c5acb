"""uint8 and asymmetric Q/DQ as int8 with zero point 0: integers, values and what TensorRT-RTX says."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from deploykit import graph
from deploykit.optimizers.rewrites.quantized_groups import grid_of
from deploykit.optimizers.rewrites.symmetric_qdq import SymmetricQdq
from deploykit.parity import TOLERANCES


def sqnr(reference, found):
    return 10 * np.log10((reference**2).sum() / max(((found - reference) ** 2).sum(), 1e-30))


def types(result):
    return {node.outputs[0].dtype.name for node in graph.all_nodes(result.model) if node.op_type == "QuantizeLinear"}


def test_zero_point_128_keeps_every_value(rewritten, random):
    x = {"x": random.normal(size=(3, 5)).astype(np.float32)}
    result = rewritten(
        SymmetricQdq(),
        """agraph (float[N,5] x) => (float[N,5] y) <float s = {0.02}, uint8 z = {128}>
        { q = QuantizeLinear(x, s, z)
          y = DequantizeLinear(q, s, z) }""",
        x,
    )
    assert types(result) == {"INT8"}
    np.testing.assert_array_equal(result.found[0][0], result.expected[0][0])
    assert result.changes[0].bound == "fp32"


def test_a_zero_point_left_out_is_uint8_and_becomes_a_relu(rewritten, random):
    """uint8 from 0 up has cut off what is negative: so does the Relu that takes its place."""
    x = {"x": random.normal(size=(64,)).astype(np.float32)}
    result = rewritten(
        SymmetricQdq(),
        """agraph (float[N] x) => (float[N] y) <float s = {0.01}>
        { q = QuantizeLinear(x, s)
          y = DequantizeLinear(q, s) }""",
        x,
    )
    assert result.ops == ["Relu", "QuantizeLinear", "DequantizeLinear"]
    assert np.abs(result.found[0][0] - result.expected[0][0]).max() <= 0.011 + 0.005
    assert (result.found[0][0] >= 0).all()
    assert result.changes[0].bound == "int8"


def test_no_relu_behind_what_is_never_negative(rewritten, random):
    x = {"x": random.normal(size=(8, 10)).astype(np.float32)}
    result = rewritten(
        SymmetricQdq(),
        """agraph (float[N,10] x) => (float[N,10] y) <float s = {0.00392}, uint8 z = {0}>
        { p = Softmax(x)
          q = QuantizeLinear(p, s, z)
          y = DequantizeLinear(q, s, z) }""",
        x,
    )
    assert result.ops == ["Softmax", "QuantizeLinear", "DequantizeLinear"]


def test_what_shares_the_integers_changes_together(rewritten, random):
    x = {"x": random.uniform(-1, 2, size=(2, 3, 4, 4)).astype(np.float32)}
    result = rewritten(
        SymmetricQdq(),
        """agraph (float[N,3,4,4] x) => (float[N,6,2,2] y, float[N,3,4,4] w)
        <float s = {0.0125}, uint8 z = {85}, uint8[1,3,2,2] k = {1,2,3,4,5,6,7,8,9,10,11,200}, int64[4] one = {1,1,1,1}>
        { q = QuantizeLinear(x, s, z)
          p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(q)
          t = Tile(k, one)
          d = Shape(x)
          c = Concat<axis=1>(p, p)
          y = DequantizeLinear(c, s, z)
          w = DequantizeLinear(q, s, z) }""",
        x,
    )
    kinds = {value.name: value.dtype.name for node in graph.all_nodes(result.model) for value in node.outputs}
    assert {kinds["q"], kinds["p"], kinds["c"]} == {"INT8"}
    assert kinds["t"] == "UINT8"  # another quantization, or none
    assert sqnr(result.expected[0][0], result.found[0][0]) >= TOLERANCES["int8"].min_sqnr_db


def test_weights_keep_their_values_where_int8_holds_them(rewritten):
    result = rewritten(
        SymmetricQdq(),
        """agraph (float[N,2] x) => (float[N,3] y)
        <uint8[2,3] w = {0, 20, 40, 60, 80, 100}, float[3] s = {0.1, 0.2, 0.3}, uint8[3] z = {20, 30, 40}>
        { d = DequantizeLinear<axis=1>(w, s, z)
          y = MatMul(x, d) }""",
        {"x": np.eye(2, dtype=np.float32)},
    )
    np.testing.assert_array_equal(result.found[0][0], result.expected[0][0])
    assert result.changes[0].bound == "fp32"
    assert result.model.graph.initializers["w"].dtype.name == "INT8"


def test_the_int32_bias_of_a_changed_scale_becomes_float(rewritten, random):
    result = rewritten(
        SymmetricQdq(),
        """agraph (float[N,1,4,4] x) => (float[N,2,2,2] y)
        <float s = {0.02}, uint8 z = {100}, int8[2,1,3,3] w = {1,2,3,4,5,6,7,8,9,-1,-2,-3,-4,-5,-6,-7,-8,-9},
         float t = {0.03}, int8 zero = {0}, int32[2] b = {500, -700}, float u = {0.0006}>
        { q = QuantizeLinear(x, s, z)
          xd = DequantizeLinear(q, s, z)
          wd = DequantizeLinear(w, t, zero)
          bd = DequantizeLinear(b, u)
          y = Conv(xd, wd, bd) }""",
        {"x": random.normal(size=(2, 1, 4, 4)).astype(np.float32)},
    )
    assert result.ops.count("DequantizeLinear") == 2
    assert sqnr(result.expected[0][0], result.found[0][0]) >= TOLERANCES["int8"].min_sqnr_db


def test_bodies_are_rewritten(rewritten, random):
    result = rewritten(
        SymmetricQdq(),
        """agraph (float[4] x, bool c) => (float[4] y) <float s = {0.01}, uint8 z = {120}>
        { y = If(c) <then_branch = t () => (float[4] a) { q = QuantizeLinear(x, s, z)
                                                         a = DequantizeLinear(q, s, z) },
                     else_branch = e () => (float[4] b) { b = Neg(x) }> }""",
        {"x": random.uniform(-1, 1, size=4).astype(np.float32), "c": np.array(True)},
        {"x": random.normal(size=4).astype(np.float32), "c": np.array(False)},
    )
    assert types(result) == {"INT8"}
    assert np.abs(result.found[0][0] - result.expected[0][0]).max() <= 0.011
    np.testing.assert_array_equal(result.found[1][0], result.expected[1][0])


@pytest.mark.parametrize(
    "body",
    [
        "q = QuantizeLinear(x, s, z)\n y = Cast<to=1>(q)",  # the integers are used as numbers
        "q = QuantizeLinear(x, s, z)\n y = DequantizeLinear(q, t, z)",  # the two disagree
        "q = QuantizeLinear(x, s, zero)\n y = DequantizeLinear(q, s, zero)",  # symmetric already
    ],
)
def test_what_cannot_or_need_not_change_stays(rewritten, body):
    result = rewritten(
        SymmetricQdq(),
        f"""agraph (float[4] x) => (float[4] y)
        <float s = {{0.1}}, float t = {{0.2}}, uint8 z = {{3}}, int8 zero = {{0}}>
        {{ {body} }}""",
        {"x": np.float32([0, 1, 2, 3])},
    )
    assert result.changes == []


@pytest.fixture
def asymmetric_digits(tmp_path, deploykit_cli, shared_model):
    """Digits as onnxruntime wants it: uint8 activations with zero points, int32 biases."""
    out = tmp_path / "uint8.onnx"
    calib = shared_model("digits/digits_cnn_calib.npz")
    flags = ("--precision", "int8", "--target", "onnxruntime", "--calib", calib, "-o", out)
    done = deploykit_cli("quantize", shared_model("digits/digits_cnn.onnx"), *flags)
    assert done.code == 0, done.stderr
    return out


def test_digits_keeps_its_accuracy_and_tensorrt_takes_it(rewritten, asymmetric_digits, shared_model, tmp_path):
    pytest.importorskip("tensorrt_rtx")
    from deploykit.isolation import run_isolated

    test = np.load(shared_model("digits/digits_cnn_test.npz"))
    name = onnx.load(asymmetric_digits).graph.input[0].name
    feeds = {name: test["x"].astype(np.float32)}
    result = rewritten(SymmetricQdq(), onnx.load(asymmetric_digits), feeds)
    source = rewritten(SymmetricQdq(), onnx.load(shared_model("digits/digits_cnn.onnx")), feeds)
    assert source.changes == []
    reference, before, after = source.expected[0][0], result.expected[0][0], result.found[0][0]
    assert sqnr(reference, after) >= TOLERANCES["int8"].min_sqnr_db
    accuracy = [float((logits.argmax(1) == test["y"]).mean()) for logits in (before, after)]
    assert abs(accuracy[0] - accuracy[1]) <= 0.005
    assert "uint8" not in {value.dtype.name.lower() for value in result.model.graph.initializers.values()}

    path = tmp_path / "int8.onnx"
    graph.save(result.model, path)
    rows = {}
    for file in (asymmetric_digits, path):
        job = {"model": str(file), "options": {}, "dims": {"N": [1, 64]}, "profiles": {}}
        answer = run_isolated("tensorrt-rtx", "deploykit.converters.tensorrt_rtx.support:support_job", job)
        rows[file] = {row["verdict"] for row in answer["nodes"]}
    assert "unsupported" in rows[asymmetric_digits]
    assert rows[path] == {"supported"}


def test_softmax_between_products_that_onnxruntime_quantized(rewritten, shared, deploykit_cli, tmp_path):
    """Case softmax_symmetric_trt: a uint8 Softmax; what TensorRT wants is int8 with every zero point 0."""
    case, out = shared / "cases" / "softmax_symmetric_trt.onnx", tmp_path / "uint8.onnx"
    calib = shared / "cases" / "softmax_symmetric_trt.in0.npz"
    done = deploykit_cli("quantize", case, "--precision", "int8", "--calib", calib, "-o", out)
    assert done.code == 0, done.stderr
    feeds = dict(np.load(calib))
    result = rewritten(SymmetricQdq(), onnx.load(out), feeds)
    grids = [grid_of(node) for node in graph.all_nodes(result.model) if node.op_type == "QuantizeLinear"]
    assert grids
    assert all(grid.is_symmetric for grid in grids)
    expected = np.load(shared / "cases" / "softmax_symmetric_trt.out0.npz")
    assert sqnr(next(iter(expected.values())), result.found[0][0]) >= TOLERANCES["int8"].min_sqnr_db
