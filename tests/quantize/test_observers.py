import math

import numpy as np
import pytest

from deploykit.quantize import observers
from deploykit.quantize.observers import BINS, HistogramObserver, RangeObserver, finished, look, quota

RNG = np.random.default_rng(0)


def seen(*arrays, elements=1 << 20):
    """A histogram of one tensor over several samples, and its extremes."""
    ranges, histogram = RangeObserver(1), HistogramObserver()
    for turn, array in enumerate(arrays):
        found = look(np.asarray(array, np.float32), elements, turn)
        ranges.observe([found])
        if found.low <= found.high:
            histogram.widen(max(abs(found.low), abs(found.high)))
            histogram.observe(found.elements)
    return histogram, ranges.of(0)


def test_range_is_exact_over_shapes_and_calls():
    _, found = seen(np.array(3.5), np.array([[-2.0, 1.0]]), np.zeros((1, 0, 4)))
    assert (found.minimum, found.maximum, found.samples, found.elements) == (-2.0, 3.5, 2, 3)


@pytest.mark.parametrize("size", [observers.CHUNK - 1, observers.CHUNK, 3 * observers.CHUNK + 7])
def test_the_extremes_of_a_large_tensor_are_exact_wherever_they_are(size):
    values = RNG.normal(size=size).astype(np.float32)
    for place in (0, size // 2, size - 1):
        values[place], values[place - 1] = 50.0, -60.0
        found = look(values, 4096, 3)
        assert (found.low, found.high, found.size) == (-60.0, 50.0, size)
        values[place] = values[place - 1] = 0.0


def test_not_finite_elements_are_counted_and_left_out():
    histogram, found = seen([np.nan, np.inf, 1.0, -4.0], [np.nan])
    assert (found.minimum, found.maximum, found.not_finite, found.samples) == (-4.0, 1.0, 3, 1)
    assert histogram.counts.sum() == 2


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_bad_element_in_one_part_of_a_large_tensor_is_found(bad):
    values = np.ones(3 * observers.CHUNK, np.float32)
    values[2 * observers.CHUNK + 5] = bad
    found = look(values, 0, 0)
    assert (found.low, found.high, found.not_finite) == (1.0, 1.0, 1)


def test_a_tensor_that_was_always_empty_never_fired():
    _, found = seen(np.empty((0, 3)))
    assert not found.fired
    assert found.growth == 0.0


def test_growth_is_what_the_second_half_added():
    ranges = RangeObserver(2)
    first, second = (look(np.array([0.0, top], np.float32), 0, 0) for top in (6.0, 8.0))
    ranges.observe([first, second])
    ranges.observe([second, second], second_half=True)
    assert ranges.of(0).growth == pytest.approx(0.25)
    assert ranges.of(1).growth == 0.0


def test_constant_tensor():
    _, found = seen(np.full((3, 3), 2.0))
    assert found.constant
    assert found.growth == 0.0


def test_the_average_is_plain_at_first_and_exponential_later():
    ranges = RangeObserver(1)
    tops = RNG.uniform(1, 2, 300).astype(np.float32)
    expected = float(tops[0])
    for number, top in enumerate(tops, 1):
        ranges.observe([look(np.array([0.0, top], np.float32), 0, 0)])
        expected += (float(top) - expected) * max(1 / number, 0.01)
        if number == 50:
            assert ranges.of(0).mean_maximum == pytest.approx(tops[:50].mean(), rel=1e-6)
    assert ranges.of(0).mean_maximum == pytest.approx(expected)


def test_histogram_counts_as_numpy_does():
    values = RNG.normal(size=20_000).astype(np.float32)
    histogram, extremes = seen(*np.split(values, 4))
    found = finished(histogram, extremes)
    expected, _ = np.histogram(values, bins=found.edges)
    assert found.counts.tolist() == expected.tolist()
    assert found.counts.sum() == values.size
    assert found.edges[0] <= values.min() < found.edges[1]
    assert found.edges[-2] <= values.max() < found.edges[-1]


def test_the_histogram_does_not_depend_on_the_order_in_which_ranges_grow():
    parts = [RNG.normal(scale=scale, size=5000) for scale in (1e-3, 40.0, 1.0, 7.0, 1e-6)]
    parts.append(np.array([0.0, 64.0, -64.0, 4096.0, 0.5]))
    whole, _ = seen(np.concatenate(parts))
    for order in (parts, parts[::-1], parts[2:] + parts[:2]):
        histogram, _ = seen(*order)
        assert histogram.exponent == whole.exponent
        assert histogram.counts.tolist() == whole.counts.tolist()


@pytest.mark.parametrize("largest", [1e-30, 3.0, 4096.0, 8191.5, 3e38])
def test_the_larger_side_fills_more_than_half_of_its_bins(largest):
    histogram, extremes = seen(np.array([largest, -largest / 3]))
    found = finished(histogram, extremes)
    assert BINS / 2 <= math.floor(extremes.maximum / (found.edges[1] - found.edges[0])) < BINS


def test_a_large_tensor_gives_evenly_spaced_elements_of_every_channel():
    channels = np.tile(np.arange(768, dtype=np.float32), (4, 512, 1))
    found = look(channels, 4096, 0)
    assert found.elements.size <= 4096
    assert np.unique(found.elements).size == 768
    assert set(look(channels, 4096, 1).elements[:1]) != set(found.elements[:1])


def test_the_error_of_the_elements_taken_is_the_one_stated():
    values = RNG.normal(size=1 << 20).astype(np.float32)
    taken = look(values, 1 << 14, 5).elements
    for share in (0.01, 0.1, 0.5):
        above = np.mean(taken > np.quantile(values, 1 - share))
        assert abs(above - share) < 4 * math.sqrt(share / taken.size)


def test_an_extreme_that_was_not_taken_still_counts_as_one_element():
    values = RNG.normal(size=1 << 20).astype(np.float32)
    values[1] = 100.0
    histogram, extremes = seen(values, elements=1 << 12)
    found = finished(histogram, extremes)
    assert found.counts[-1] == pytest.approx(found.counts.sum() / values.size, rel=0.01)


def test_zero_stands_for_the_bin_that_holds_it():
    histogram, extremes = seen(np.array([-1.0, 3.0, 0.0]))
    assert 0.0 in finished(histogram, extremes).centers


def test_few_samples_give_more_elements_each():
    assert [quota(count) for count in (None, 1, 8, 64, 512, 5000)] == [4096, 32768, 32768, 4096, 4096, 4096]
