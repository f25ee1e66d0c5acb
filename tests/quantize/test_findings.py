"""What is said about the calibration: with a number, about the tensors that are used, and not about sound data."""

import dataclasses

import numpy as np
import pytest
from quantize_models import onnx_text, ranges_of

from deploykit.quantize.findings import about_ranges, about_samples
from deploykit.quantize.prepare import load_float

RNG = np.random.default_rng(0)


@pytest.fixture
def model(tmp_path):
    text = "g (float[n,4] x, float[n,4] z) => (float[n,4] y) { a = MatMul (x, w)  b = MatMul (z, w)  y = Add (a, b) }"
    return load_float(onnx_text(text, tmp_path / "m.onnx", w=np.eye(4, dtype=np.float32)))[0]


def feeds(count, **changed):
    values = ({name: RNG.uniform(-3, 3, size=(50, 4)) for name in "xz"} | changed for _ in range(count))
    return [{name: array.astype(np.float32) for name, array in found.items()} for found in values]


def said(found, code):
    return [finding for finding in found if finding.code == code]


def test_sound_data_has_nothing_to_say(model):
    ranges = ranges_of(model, feeds(32))
    assert [finding.code for finding in about_ranges(ranges, {"x", "z", "a", "b"})] == []
    assert about_samples(32, 0, 0, 0) == []


def test_an_outlier_is_told_with_its_number(model):
    data = feeds(32)
    data[3]["x"][7, 2] = -5000.0
    found = said(about_ranges(ranges_of(model, data, "mse"), {"x", "z"}), "DK335")
    assert len(found) == 1
    assert found[0].tensor == "x"
    assert "1 of 2 tensors" in found[0].message
    assert "'x' reaches 5000" in found[0].message
    typical = np.quantile(np.abs(np.concatenate([feed["x"] for feed in data])), 0.99)
    times = int(found[0].message.partition(" times")[0].rpartition(" ")[2])
    assert times == pytest.approx(5000 / typical, rel=0.35)  # the histogram's bins are 2.44 wide beside 5000


def test_an_outlier_of_a_tensor_that_is_not_used_is_not_told(model):
    data = feeds(32)
    data[3]["x"][7, 2] = -5000.0
    assert said(about_ranges(ranges_of(model, data), {"z"}), "DK335") == []


def test_constant_tensors_and_few_samples_are_told(model):
    found = about_ranges(ranges_of(model, feeds(3, z=np.full((50, 4), 2.5))), {"x", "z"})
    assert [finding.code for finding in found] == ["DK365", "DK369"]
    assert "only 3 calibration samples" in found[0].message
    assert "'z' was 2.5" in found[1].message


def test_ranges_that_the_second_half_widened_are_told(model):
    data = feeds(16)
    data[12]["z"] *= 10
    found = said(about_ranges(ranges_of(model, data), {"x", "z", "b"}), "DK366")
    assert len(found) == 1
    assert "2 of 3 tensors" in found[0].message


def test_a_tensor_that_was_never_finite_is_told(model):
    ranges = ranges_of(model, feeds(9, x=np.full((50, 4), np.nan)))
    text = said(about_ranges(ranges, {"z"}), "DK367")[0].message
    assert "'x' had 1800 NaN or infinite elements" in text


@pytest.mark.parametrize(
    ("repeated", "zeros", "resumed", "codes"),
    [(4, 0, 0, []), (5, 0, 0, ["DK336"]), (0, 4, 0, []), (0, 40, 0, ["DK337"]), (0, 0, 7, ["DK338"]), (39, 40, 7, 3)],
)
def test_degenerate_samples_are_told_from_a_tenth_on(repeated, zeros, resumed, codes):
    found = about_samples(40, repeated, zeros, resumed)
    if isinstance(codes, int):
        assert len(found) == codes
    else:
        assert [finding.code for finding in found] == codes


def test_the_numbers_are_in_the_text():
    texts = [finding.message for finding in about_samples(40, 39, 40, 0)]
    assert texts[0] == "39 of 40 calibration samples are equal to another one: 1 differ"
    assert texts[1].startswith("40 of 40 calibration samples are 0")


def test_ranges_without_a_typical_magnitude_have_no_outliers(model):
    ranges = ranges_of(model, feeds(9))
    flat = {name: dataclasses.replace(found, typical=0.0) for name, found in ranges.tensors.items()}
    assert said(about_ranges(dataclasses.replace(ranges, tensors=flat), {"x"}), "DK335") == []
