"""A dequantized int32 bias as a float constant: the same numbers to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from deploykit.optimizers.rewrites.fold_int32_bias import FoldInt32Bias


def test_a_bias_with_a_scale_for_each_channel(rewritten):
    result = rewritten(
        FoldInt32Bias(),
        """agraph (float[N,3] x) => (float[N,3] y)
        <int32[3] b = {7, -2000000000, 123456789}, float[3] s = {0.001, 3e-7, 2.5}>
        { d = DequantizeLinear<axis=0>(b, s)
          y = Add(x, d) }""",
        {"x": np.zeros((2, 3), np.float32)},
    )
    assert result.ops == ["Add"]
    np.testing.assert_array_equal(result.found[0][0], result.expected[0][0])
    assert "b" not in result.model.graph.initializers
    assert result.changes[0].bound == "fp32"


def test_rank_two_with_a_zero_point_along_the_default_axis(rewritten):
    result = rewritten(
        FoldInt32Bias(),
        """agraph (float[2,3] x) => (float[2,3] y)
        <int32[2,3] b = {1, 2, 3, -4, -5, 100000}, float[3] s = {0.1, 0.2, 0.3}, int32[3] z = {0, 0, 0}>
        { d = DequantizeLinear(b, s, z)
          y = Add(x, d) }""",
        {"x": np.ones((2, 3), np.float32)},
    )
    assert result.ops == ["Add"]
    np.testing.assert_array_equal(result.found[0][0], result.expected[0][0])


def test_a_bias_inside_a_body(rewritten):
    result = rewritten(
        FoldInt32Bias(),
        """agraph (bool c, float[2] x) => (float[2] y)
        <int32[2] b = {5, 6}, float s = {0.5}>
        { y = If(c) <then_branch = t () => (float[2] p) { d = DequantizeLinear(b, s)
                                                          p = Add(x, d) },
                     else_branch = e () => (float[2] q) { q = Neg(x) }> }""",
        {"x": np.ones(2, np.float32), "c": np.array(True)},
    )
    assert "DequantizeLinear" not in result.ops
    np.testing.assert_array_equal(result.found[0][0], result.expected[0][0])


@pytest.mark.parametrize(
    "body",
    [
        "d = DequantizeLinear(i, s)\n y = Add(x, d)",  # not constant
        "y = DequantizeLinear(b, s)",  # an output of the graph
        "d = DequantizeLinear(w, s)\n y = Add(x, d)",  # not int32
    ],
)
def test_anything_else_stays(rewritten, body):
    result = rewritten(
        FoldInt32Bias(),
        f"""agraph (float[2] x, int32[2] i) => (float[2] y)
        <int32[2] b = {{5, 6}}, int8[2] w = {{1, 2}}, float s = {{0.5}}>
        {{ {body} }}""",
        {"x": np.ones(2, np.float32), "i": np.zeros(2, np.int32)},
    )
    assert result.changes == []
