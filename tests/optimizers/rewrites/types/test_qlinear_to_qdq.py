"""Integer operators in Q/DQ form against their own kernels in onnxruntime: one quantization step apart at most."""

from __future__ import annotations

import numpy as np
import pytest

from deploykit import graph
from deploykit.optimizers.rewrites.qlinear_to_qdq import QLinearToQdq
from deploykit.optimizers.rewrites.quantized_groups import grid_of
from deploykit.optimizers.rewrites.symmetric_qlinear import SymmetricQLinear
from deploykit.parity import TOLERANCES

CONSTANTS = (
    """float xs = {0.05}, uint8 xz = {120}, float ws = {0.02}, int8 wz = {3}, float ys = {0.07}, uint8 yz = {99}"""
)


def steps_apart(result):
    """How many integers the outputs differ by at most."""
    pairs = zip(result.expected, result.found, strict=True)
    return max(int(np.abs(a[0].astype(int) - b[0].astype(int)).max()) for a, b in pairs)


def integers(random, *shape):
    return random.integers(0, 256, size=shape, dtype=np.uint8)


@pytest.mark.parametrize("constant_bias", [True, False])
def test_convolution_with_a_scale_for_each_channel_and_a_bias(rewritten, random, constant_bias):
    weights = ", ".join(str(value) for value in random.integers(-127, 128, 36))
    kept, fed = ", int32[2] b = {900, -1100}", ", int32[2] b"
    result = rewritten(
        QLinearToQdq(),
        f"""agraph (uint8[N,2,5,5] x{"" if constant_bias else fed}) => (uint8[N,2,3,3] y)
        <int8[2,2,3,3] w = {{{weights}}}, float[2] s = {{0.01, 0.02}},
         int8[2] z = {{0, 0}}, {CONSTANTS}{kept if constant_bias else ""}>
        {{ y = QLinearConv<strides=[2,2], pads=[1,1,1,1]>(x, xs, xz, w, s, z, ys, yz, b) }}""",
        {"x": integers(random, 3, 2, 5, 5)} | ({} if constant_bias else {"b": np.array([900, -1100], np.int32)}),
    )
    assert "QLinearConv" not in result.ops
    assert steps_apart(result) <= 1
    assert result.changes[0].bound == "int8"


@pytest.mark.parametrize(
    "columns", ["float ws = {0.02}, int8 wz = {3}", "float[3] ws = {0.02, 0.1, 0.004}, int8[3] wz = {1, 0, 9}"]
)
def test_matrix_product(rewritten, random, columns):
    result = rewritten(
        QLinearToQdq(),
        f"""agraph (uint8[N,4] x) => (uint8[N,3] y)
        <int8[4,3] w = {{1,-2,3,-4,5,-6,7,-8,9,-10,11,-12}}, float xs = {{0.05}}, uint8 xz = {{120}}, {columns},
         float ys = {{0.3}}, uint8 yz = {{128}}>
        {{ y = QLinearMatMul(x, xs, xz, w, ws, wz, ys, yz) }}""",
        {"x": integers(random, 7, 4)},
        {"x": integers(random, 1, 4)},
    )
    assert result.ops == ["DequantizeLinear", "DequantizeLinear", "MatMul", "QuantizeLinear"]
    assert steps_apart(result) <= 1


@pytest.mark.parametrize(
    ("call", "shape"),
    [
        ("MatMulInteger(x, w, xz, wz)", (6, 4)),
        ("MatMulInteger(x, w)", (6, 4)),
        ("ConvInteger(v, k, xz)", (6, 4)),
    ],
)
def test_integer_products_are_exact(rewritten, random, call, shape):
    result = rewritten(
        QLinearToQdq(),
        f"""agraph (uint8[N,4] x, uint8[1,1,5,5] v) => (int32 y)
        <uint8[4,2] w = {{1,2,3,4,250,251,252,253}}, uint8[1,1,2,2] k = {{255,254,0,7}}, uint8 xz = {{120}},
         uint8 wz = {{3}}>
        {{ y = {call} }}""".replace("int32 y", "int32[N,2] y" if "MatMul" in call else "int32[1,1,4,4] y"),
        {"x": integers(random, *shape), "v": integers(random, 1, 1, 5, 5)},
    )
    assert "Cast" in result.ops
    np.testing.assert_array_equal(result.found[0][0], result.expected[0][0])


UNARY = {
    "com.microsoft.QLinearSigmoid(x, xs, xz, s, z)": "[N,3,4,4]",
    "com.microsoft.QLinearLeakyRelu<alpha=0.2>(x, xs, xz, ys, yz)": "[N,3,4,4]",
    "com.microsoft.QLinearGlobalAveragePool(x, xs, xz, ys, yz)": "[N,3,1,1]",
    "com.microsoft.QLinearAveragePool<kernel_shape=[2,2], strides=[2,2]>(x, xs, xz, ys, yz)": "[N,3,2,2]",
    "com.microsoft.QLinearSoftmax<axis=-1, opset=17>(x, xs, xz, s, z)": "[N,3,4,4]",
    "com.microsoft.QLinearAdd(x, xs, xz, x, xs, xz, ys, yz)": "[N,3,4,4]",
    "com.microsoft.QLinearMul(x, xs, xz, k, xs, xz, ys, yz)": "[N,3,4,4]",
    "com.microsoft.QLinearConcat<axis=1>(ys, yz, x, xs, xz, x, s, xz)": "[N,6,4,4]",
    "com.microsoft.QLinearWhere(c, x, xs, xz, k, s, xz, ys, yz)": "[N,3,4,4]",
}


@pytest.mark.parametrize("call", UNARY)
def test_onnxruntimes_own_operators(rewritten, random, call):
    result = rewritten(
        QLinearToQdq(),
        f"""agraph (uint8[N,3,4,4] x, bool[4] c) => (uint8{UNARY[call]} y)
        <uint8[4] k = {{7, 100, 150, 255}}, float s = {{0.00392}}, uint8 z = {{0}}, {CONSTANTS}>
        {{ y = {call} }}""",
        {"x": integers(random, 2, 3, 4, 4), "c": np.array([True, False, True, False])},
        microsoft=True,
    )
    assert not any(op.startswith("QLinear") for op in result.ops)
    assert steps_apart(result) <= 1


@pytest.mark.parametrize("quantized_result", [True, False])
@pytest.mark.parametrize("alpha", [1.0, 0.5])
def test_gemm_with_a_bias(rewritten, random, quantized_result, alpha):
    end = ", ys, yz" if quantized_result else ""
    result = rewritten(
        QLinearToQdq(),
        f"""agraph (uint8[N,4] x) => ({"uint8" if quantized_result else "float"}[N,3] y)
        <int8[3,4] w = {{1,-2,3,-4,5,-6,7,-8,9,-10,11,-12}}, int32[3] b = {{100, -200, 3000}}, {CONSTANTS}>
        {{ y = com.microsoft.QGemm<transB=1, alpha={alpha}>(x, xs, xz, w, ws, wz, b{end}) }}""",
        {"x": integers(random, 5, 4)},
        microsoft=True,
    )
    if quantized_result:
        assert steps_apart(result) <= 1
    else:
        np.testing.assert_allclose(result.found[0][0], result.expected[0][0], rtol=1e-5, atol=1e-5)


def test_what_is_quantized_at_run_time_stays(rewritten, random):
    result = rewritten(
        QLinearToQdq(),
        """agraph (float[N,4] x) => (int32[N,2] y) <int8[4,2] w = {1,2,3,4,5,6,7,8}>
        { q, s, z = DynamicQuantizeLinear(x)
          y = MatMulInteger(q, w, z) }""",
        {"x": random.normal(size=(2, 4)).astype(np.float32)},
    )
    assert result.changes == []


def test_a_chain_of_asymmetric_integers_goes_in_one_step(rewritten, random):
    """The integers between QuantizeLinear, a QLinear operator, MaxPool and the next one change together."""
    x = {"x": random.uniform(-2, 1, size=(3, 2, 6, 6)).astype(np.float32)}
    result = rewritten(
        SymmetricQLinear(),
        """agraph (float[N,2,6,6] x) => (float[N,2,2,2] y)
        <int8[2,2,1,1] w = {50,-20,30,100}, float xs = {0.0118}, int8 xz = {42}, float[2] ws = {0.01, 0.02},
         int8[2] wz = {0, 0}, float ys = {0.03}, int8 yz = {-7}, int32[2] b = {900, -1100}>
        { q = QuantizeLinear(x, xs, xz)
          a = QLinearConv(q, xs, xz, w, ws, wz, ys, yz, b)
          m = MaxPool<kernel_shape=[3,3], strides=[3,3]>(a)
          c = QLinearConv(m, ys, yz, w, ws, wz, ys, yz)
          y = DequantizeLinear(c, ys, yz) }""",
        x,
    )
    grids = [grid_of(node) for node in graph.all_nodes(result.model) if node.op_type.endswith("antizeLinear")]
    assert all(grid.is_symmetric for grid in grids)
    difference = result.found[0][0] - result.expected[0][0]
    assert 10 * np.log10((result.expected[0][0] ** 2).sum() / (difference**2).sum()) >= TOLERANCES["int8"].min_sqnr_db
