"""The arithmetic of int8 with zero point 0: nothing leaves the range, nothing moves further than it has to."""

from __future__ import annotations

import hypothesis.extra.numpy as arrays
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from deploykit.optimizers.rewrites.requantizing import Grid, recentre, symmetric

scales = st.floats(2.0**-20, 1000, width=32)
zeros = st.one_of(
    st.integers(0, 255).map(lambda zero: np.array(zero, np.uint8)),
    st.integers(-128, 127).map(lambda zero: np.array(zero, np.int8)),
)


@given(scales, zeros)
def test_the_symmetric_grid_reaches_as_far_and_no_further_than_it_must(scale, zero):
    old = Grid(np.float32(scale).reshape(()), zero)
    new = symmetric(old)
    low, high = old.limits
    assert new.is_symmetric
    assert new.limits[0] <= low * (1 - 1e-6)
    assert new.limits[1] >= high * (1 - 1e-6)
    touched = np.isclose(new.limits[0], low, rtol=1e-5) or np.isclose(new.limits[1], high, rtol=1e-5)
    assert touched


@given(scales)
def test_zero_point_128_is_int8_shifted(scale):
    old = Grid(np.float32(scale).reshape(()), np.array(128, np.uint8))
    new = symmetric(old)
    assert new.scale == old.scale
    integers = np.arange(256, dtype=np.uint8)
    moved, kept, exact = recentre(integers, old, None)
    assert exact
    assert kept == old.scale
    np.testing.assert_array_equal(moved, np.arange(-128, 128))


@given(st.data(), scales, zeros)
def test_constants_move_by_half_a_step_at_most(data, scale, zero):
    info = np.iinfo(zero.dtype)
    integers = data.draw(arrays.arrays(zero.dtype, (3, 4), elements=st.integers(int(info.min), int(info.max))))
    old = Grid(np.float32(scale).reshape(()), zero)
    moved, new_scale, exact = recentre(integers, old, None)
    before = (integers.astype(np.int64) - int(zero)) * np.float64(scale)
    after = moved * new_scale.astype(np.float64)
    assert moved.dtype == np.int8
    if exact:
        np.testing.assert_allclose(after, before, rtol=1e-6)
    assert np.abs(after - before).max() <= 0.5001 * float(new_scale) + 1e-6 * np.abs(before).max()


def test_each_channel_has_a_scale_of_its_own():
    old = Grid(np.float32([0.1, 0.2]), np.array([10, 0], np.uint8))
    integers = np.array([[5, 15], [0, 254]], np.uint8)
    moved, scale, exact = recentre(integers, old, 0)
    assert not exact
    np.testing.assert_allclose(scale, [0.1, 0.4], rtol=1e-6)  # 254 / 127 = 2 times as coarse
    np.testing.assert_array_equal(moved, [[-5, 5], [0, 127]])


def test_an_empty_constant_keeps_its_scale():
    moved, scale, exact = recentre(np.zeros((0, 3), np.uint8), Grid(np.float32(0.5).reshape(()), np.uint8(7)), None)
    assert exact
    assert moved.shape == (0, 3)
    assert scale == 0.5
