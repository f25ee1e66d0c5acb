import numpy as np
import pytest

from deploykit.quantize.observers import Histogram, HistogramObserver, RangeObserver, finished, look
from deploykit.quantize.thresholds import METHODS, Interval, choose_interval, quantization_loss

RNG = np.random.default_rng(0)


def histogram_of(values: np.ndarray) -> Histogram:
    found = look(values.astype(np.float32), values.size, 0)
    ranges, observer = RangeObserver(1), HistogramObserver()
    ranges.observe([found])
    observer.widen(max(abs(found.low), abs(found.high)))
    observer.observe(found.elements)
    return finished(observer, ranges.of(0))


def true_loss(values: np.ndarray, interval: Interval) -> float:
    scale = (interval.high - interval.low) / 255
    zero = round(-interval.low / scale)
    quantized = (np.clip(np.round(values / scale) + zero, 0, 255) - zero) * scale
    return float(np.mean((quantized - values) ** 2))


OUTLIER = np.append(RNG.normal(size=100_000), [80.0, -60.0])
RELU = np.maximum(np.append(RNG.normal(size=100_000), 40.0), 0)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("values", [OUTLIER, RELU, -RELU, RNG.uniform(2, 3, 10_000)])
def test_every_method_gives_a_range_that_holds_zero_and_is_within_what_was_seen(method, symmetric, values):
    found = choose_interval(histogram_of(values), method, symmetric=symmetric)
    assert found.low <= 0 <= found.high
    assert found.low < found.high
    limit = np.abs(values).max() * (1 + 1e-6)
    assert -limit <= found.low
    assert found.high <= limit
    if symmetric:
        assert found.low == -found.high


def test_minmax_clips_nothing():
    assert choose_interval(histogram_of(OUTLIER), "minmax", symmetric=False) == Interval(-60.0, 80.0, "minmax")


def test_percentile_is_numpys():
    values = np.abs(RNG.normal(size=200_000))
    found = choose_interval(histogram_of(values), "percentile", symmetric=False)
    assert found.low == 0.0
    assert found.high == pytest.approx(np.percentile(values, 99.99), rel=0.01)


def test_percentile_of_a_signed_tensor_cuts_both_tails():
    values = RNG.normal(size=200_000)
    found = choose_interval(histogram_of(values), "percentile", symmetric=False)
    assert found.low == pytest.approx(np.percentile(values, 0.005), rel=0.02)
    assert found.high == pytest.approx(np.percentile(values, 99.995), rel=0.02)


@pytest.mark.parametrize("symmetric", [True, False])
def test_mse_is_the_best_of_a_brute_force_search(symmetric):
    values = np.append(RNG.laplace(size=50_000), 30.0)
    found = choose_interval(histogram_of(values), "mse", symmetric=symmetric)
    grid = np.linspace(2.0, 30.0, 200)
    if symmetric:
        best = min(true_loss(values, Interval(-limit, limit)) for limit in grid)
    else:
        low = float(values.min())
        best = min(true_loss(values, Interval(max(low, -limit), limit)) for limit in grid)
    assert true_loss(values, found) <= best * 1.05


def test_the_loss_on_the_histogram_is_that_on_the_values():
    interval = Interval(-4.0, 4.0)
    assert quantization_loss(histogram_of(OUTLIER), interval) == pytest.approx(true_loss(OUTLIER, interval), rel=0.05)


def test_entropy_cuts_a_far_outlier():
    found = choose_interval(histogram_of(np.append(RNG.normal(size=100_000), 40.0)), "entropy", symmetric=True)
    assert found.high < 10


def test_auto_keeps_the_whole_range_where_clipping_gains_nothing():
    found = choose_interval(histogram_of(RNG.uniform(-1, 1, 100_000)), "auto", symmetric=True)
    assert found.method == "minmax"


def test_auto_clips_where_it_measurably_helps():
    histogram = histogram_of(np.append(RNG.normal(size=1_000_000), 200.0))
    found = choose_interval(histogram, "auto", symmetric=True)
    full = choose_interval(histogram, "minmax", symmetric=True)
    assert found.method != "minmax"
    assert quantization_loss(histogram, found) < 0.8 * quantization_loss(histogram, full)


def test_auto_weighs_what_it_clips_more_than_what_it_rounds():
    histogram = histogram_of(np.append(RNG.normal(size=100_000), RNG.normal(scale=30, size=200)))
    auto, mse = (choose_interval(histogram, method, symmetric=True) for method in ("auto", "mse"))
    full = choose_interval(histogram, "minmax", symmetric=True)
    assert mse.high < auto.high <= full.high


def test_union_names_both_methods():
    assert Interval(-1, 2, "mse").union(Interval(-3, 1, "minmax")) == Interval(-3, 2, "mse+minmax")
