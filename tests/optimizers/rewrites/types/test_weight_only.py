"""Dynamically quantized products as weight-only ones: as near to the float model as the weights allow."""

from __future__ import annotations

import numpy as np
import pytest

from deploykit.optimizers.rewrites.weight_only import WeightOnly
from deploykit.parity import TOLERANCES

W = np.array([[1, -2, 3], [-4, 5, -6], [7, -8, 9], [-10, 11, -128]], np.int8)
WEIGHTS = "int8[4,3] w = {1,-2,3,-4,5,-6,7,-8,9,-10,11,-128}"


@pytest.mark.parametrize(
    ("scales", "chain"),
    [
        ("float s = {0.05}", "f = Mul(xs, s)\n y = Mul(c, f)"),
        ("float[3] s = {0.05, 0.1, 0.02}", "f = Mul(s, xs)\n y = Mul(f, c)"),
        ("float[3] s = {0.05, 0.1, 0.02}", "f = Mul(c, xs)\n y = Mul(f, s)"),
        ("float[1,3] s = {0.05, 0.1, 0.02}", "f = Mul(c, s)\n y = Mul(f, xs)"),
    ],
)
@pytest.mark.parametrize("zero", ["", ", wz"])
def test_products_of_every_form_that_tools_write(rewritten, random, scales, chain, zero):
    x = random.normal(size=(5, 4)).astype(np.float32)
    result = rewritten(
        WeightOnly(),
        f"""agraph (float[N,4] x) => (float[N,3] y) <{WEIGHTS}, int8 wz = {{3}}, {scales}>
        {{ q, xs, z = DynamicQuantizeLinear(x)
          m = MatMulInteger(q, w, z{zero})
          c = Cast<to=1>(m)
          {chain} }}""",
        {"x": x},
    )
    assert result.ops == ["DequantizeLinear", "MatMul"]
    scale = np.array([0.05]) if "float s" in scales else np.array([0.05, 0.1, 0.02])
    float_model = x @ ((W.astype(np.float64) - (3 if zero else 0)) * scale)
    np.testing.assert_allclose(result.found[0][0], float_model, rtol=1e-4, atol=1e-4)
    assert np.abs(result.expected[0][0] - float_model).max() > np.abs(result.found[0][0] - float_model).max()
    assert {"DynamicQuantizeLinear_1", "MatMulInteger_1"} <= set(result.changes[0].removed)


def test_two_products_of_one_input_go_together(rewritten, random):
    x = random.normal(size=(5, 4)).astype(np.float32)
    result = rewritten(
        WeightOnly(),
        f"""agraph (float[N,4] x) => (float[N,3] y, float[N,3] v) <{WEIGHTS}, float s = {{0.05}}>
        {{ q, xs, z = DynamicQuantizeLinear(x)
          f = Mul(xs, s)
          m = MatMulInteger(q, w, z)
          c = Cast<to=1>(m)
          y = Mul(c, f)
          n = MatMulInteger(q, w, z)
          d = Cast<to=1>(n)
          v = Mul(d, f) }}""",
        {"x": x},
    )
    assert sorted(result.ops) == ["DequantizeLinear", "DequantizeLinear", "MatMul", "MatMul"]
    for found in result.found[0]:
        np.testing.assert_allclose(found, x @ (W * 0.05), rtol=1e-4, atol=1e-4)


def test_convolution(rewritten, random):
    result = rewritten(
        WeightOnly(),
        """agraph (float[N,1,5,5] x) => (float[N,2,3,3] y)
        <uint8[2,1,3,3] w = {1,2,3,4,5,6,7,8,9,250,251,252,253,254,255,0,1,2}, uint8 wz = {128},
         float[1,2,1,1] s = {0.01, 0.02}>
        { q, xs, z = DynamicQuantizeLinear(x)
          m = ConvInteger(q, w, z, wz)
          c = Cast<to=1>(m)
          f = Mul(xs, s)
          y = Mul(c, f) }""",
        {"x": random.normal(size=(2, 1, 5, 5)).astype(np.float32)},
    )
    assert result.ops == ["DequantizeLinear", "Conv"]
    difference, expected = result.found[0][0] - result.expected[0][0], result.expected[0][0]
    assert 10 * np.log10((expected**2).sum() / (difference**2).sum()) >= TOLERANCES["int8"].min_sqnr_db


def test_onnxruntimes_fused_form_with_a_bias(rewritten, random):
    x = random.normal(size=(5, 4)).astype(np.float32)
    result = rewritten(
        WeightOnly(),
        f"""agraph (float[N,4] x) => (float[N,3] y)
        <{WEIGHTS}, float s = {{0.05}}, int8 wz = {{0}}, float[3] b = {{1, 2, 3}}>
        {{ y = com.microsoft.DynamicQuantizeMatMul(x, w, s, wz, b) }}""",
        {"x": x},
        microsoft=True,
    )
    assert result.ops == ["DequantizeLinear", "MatMul", "Add"]
    np.testing.assert_allclose(result.found[0][0], x @ (W * 0.05) + [1, 2, 3], rtol=1e-4, atol=1e-4)


def test_a_quantizer_that_something_else_reads_stays(rewritten, random):
    result = rewritten(
        WeightOnly(),
        """agraph (float[N,4] x) => (float[N,4] y)
        { q, xs, z = DynamicQuantizeLinear(x)
          y = DequantizeLinear(q, xs, z) }""",
        {"x": random.normal(size=(5, 4)).astype(np.float32)},
    )
    assert result.changes == []
