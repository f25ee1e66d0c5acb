import numpy as np
import pytest

from deploykit.quantize.observers import HistogramObserver, RangeObserver, new_histograms


def test_range_is_exact_over_shapes_and_calls():
    observer = RangeObserver()
    observer.observe(np.array(3.5, np.float32))
    observer.observe(np.array([[-2.0, 1.0]], np.float32))
    observer.observe(np.zeros((1, 0, 4), np.float32))
    assert (observer.minimum, observer.maximum, observer.samples, observer.elements) == (-2.0, 3.5, 2, 3)


def test_not_finite_elements_are_counted_and_left_out():
    observer = RangeObserver()
    observer.observe(np.array([np.nan, np.inf, 1.0, -4.0]))
    observer.observe(np.array([np.nan]))
    assert (observer.minimum, observer.maximum, observer.not_finite) == (-4.0, 1.0, 3)


def test_a_tensor_that_was_always_empty_never_fired():
    observer = RangeObserver()
    observer.observe(np.empty((0, 3), np.float32))
    assert not observer.fired
    assert new_histograms({"past": observer}) == {}


def test_growth_is_what_the_second_half_added():
    observer = RangeObserver()
    observer.observe(np.array([0.0, 6.0]))
    observer.observe(np.array([0.0, 8.0]), second_half=True)
    assert observer.growth == pytest.approx(0.25)


def test_constant_tensor():
    observer = RangeObserver()
    observer.observe(np.full((3, 3), 2.0))
    assert observer.constant
    assert observer.growth == 0.0


def test_histogram_counts_as_numpy_does():
    values = np.random.default_rng(0).normal(size=20_000)
    observer = HistogramObserver(values.min(), values.max(), bins=64)
    for part in np.split(values, 4):
        observer.observe(part.reshape(10, -1))
    expected, _ = np.histogram(values, bins=64, range=(values.min(), values.max()))
    assert np.abs(observer.counts - expected).sum() <= 2  # a value on an edge may fall to either side
    assert observer.counts.sum() == values.size


def test_histogram_leaves_out_nan_and_samples_large_tensors():
    observer = HistogramObserver(0.0, 1.0, bins=16)
    observer.observe(np.array([np.nan, 0.5, 2.0]))
    assert observer.counts.sum() == 1
    observer.observe(np.linspace(0, 1, 1 << 20, dtype=np.float32))
    share = observer.counts / observer.counts.sum()
    assert np.allclose(share, 1 / 16, atol=1e-3)


def test_zero_stands_for_the_bin_that_holds_it():
    observer = HistogramObserver(-1.0, 3.0, bins=10)
    assert 0.0 in observer.centers
