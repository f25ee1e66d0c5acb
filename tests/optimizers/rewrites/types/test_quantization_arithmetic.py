"""Q and DQ as arithmetic: the same integers, the same floats."""

from __future__ import annotations

import numpy as np
import pytest

from deploykit.optimizers.rewrites.quantization_arithmetic import QuantizationArithmetic


def same(result):
    for before, after in zip(result.expected, result.found, strict=True):
        for a, b in zip(before, after, strict=True):
            np.testing.assert_array_equal(b, a)


@pytest.mark.parametrize(("kind", "zero"), [("uint8", 128), ("uint8", 0), ("int8", -3), ("uint16", 1000), ("int16", 0)])
def test_integers_at_the_interface(rewritten, random, kind, zero):
    info = np.iinfo(kind)
    integers = random.integers(info.min, info.max + 1, size=(3, 4)).astype(kind)
    result = rewritten(
        QuantizationArithmetic(),
        f"""agraph ({kind}[N,4] x) => ({kind}[N,4] y) <float s = {{0.02}}, float t = {{0.015}}, {kind} z = {{{zero}}}>
        {{ d = DequantizeLinear(x, s, z)
          r = Tanh(d)
          y = QuantizeLinear(r, t, z) }}""",
        {"x": integers},
        opset=21,
    )
    assert not {"QuantizeLinear", "DequantizeLinear"} & set(result.ops)
    same(result)


def test_halves_go_to_even_and_far_values_are_cut_off(rewritten):
    x = {"x": np.float32([0.5, 1.5, 2.5, -0.5, -1.5, 1e30, -1e30, 127.5, 128.5])}
    result = rewritten(
        QuantizationArithmetic(),
        "agraph (float[9] x) => (uint8[9] y) <float s = {1}, uint8 z = {128}> { y = QuantizeLinear(x, s, z) }",
        x,
    )
    same(result)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_a_scale_for_each_channel(rewritten, random, axis):
    result = rewritten(
        QuantizationArithmetic(),
        f"""agraph (float[3,3] x) => (float[3,3] y)
        <float[3] s = {{0.01, 0.02, 0.5}}, int8[3] z = {{0, 3, -7}}>
        {{ q = QuantizeLinear<axis={axis}>(x, s, z)
          y = DequantizeLinear<axis={axis}>(q, s, z) }}""",
        {"x": random.normal(size=(3, 3)).astype(np.float32)},
    )
    same(result)
    assert "Clip" in result.ops


def test_a_scale_that_is_computed(rewritten, random):
    result = rewritten(
        QuantizationArithmetic(),
        """agraph (float[N] x, float s, uint8 z) => (float[N] y)
        { q = QuantizeLinear(x, s, z)
          y = DequantizeLinear(q, s, z) }""",
        {"x": random.normal(size=5).astype(np.float32), "s": np.array(0.03, np.float32), "z": np.array(9, np.uint8)},
    )
    same(result)


def test_blocks_stay(rewritten):
    result = rewritten(
        QuantizationArithmetic(),
        """agraph (uint8[2,4] x) => (float[2,4] y) <float[2,2] s = {1, 2, 3, 4}>
        { y = DequantizeLinear<axis=1, block_size=2>(x, s) }""",
        {"x": np.arange(8, dtype=np.uint8).reshape(2, 4)},
        opset=21,
    )
    assert result.changes == []
