"""fp32 outputs beyond their row: passed where the model itself moves further by roundings, and nowhere else."""

import numpy as np
import onnx
import pytest

import deploykit
from deploykit.isolation import workers

# y is what is left of two products that nearly cancel.
MODEL = """<ir_version: 8, opset_import: ["": 17]> g (float[n,2] x) => (float[n,1] y)
<float[2,1] w = {W}> { [product] y = MatMul (x, w) }"""
ULP = 2.0**-23


@pytest.fixture(scope="module", autouse=True)
def _one_worker():
    with workers():
        yield


@pytest.fixture
def files(tmp_path):
    """A function that writes the model with these two weights; x.npz lies beside."""
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(0).uniform(0.99, 1.01, (8, 2)).astype(np.float32))

    def write(name, first, second):
        text = MODEL.replace("{W}", f"{{{first!r}, {second!r}}}")
        onnx.save(onnx.parser.parse_model(text), tmp_path / name)
        return tmp_path / name

    return write


def validated(first, second, **limits):
    return deploykit.validate(first, second, data=str(first.with_name("x.npz")), **limits)


def codes(report):
    return {finding.code for finding in report.findings if finding.severity == "error" or finding.code in CODES}


CODES = {"DK450", "DK451"}


def test_a_rounding_of_a_weight_passes_and_both_numbers_are_told(files):
    report = validated(files("a.onnx", 1000.0, -998.0), files("b.onnx", 1000.0 * (1 + 2 * ULP), -998.0))
    assert not report.failed
    assert codes(report) == {"DK450"}
    row = report.metrics["outputs"][0]
    assert 1e-5 < row["excess"] <= 1e-4
    assert row["passed"]
    assert row["tolerance"].endswith(", or the model's own movement")


def test_more_than_ten_times_the_row_never_passes(files):
    report = validated(files("a.onnx", 1000.0, -998.0), files("b.onnx", 1000.0 * (1 + 60 * ULP), -998.0))
    assert report.failed
    assert codes(report) == {"DK401"}


def test_a_fault_that_is_no_rounding_fails_and_says_so(files):
    report = validated(files("a.onnx", 3.0, 1.0), files("b.onnx", 3.0 * 1.0002, 1.0))
    assert report.failed
    assert codes(report) == {"DK401", "DK451"}
    assert not report.metrics["outputs"][0]["passed"]


@pytest.mark.parametrize("limits", [{"rtol": 1e-4}, {"atol": 1e-5}, {"min_sqnr": 150}])
def test_limits_that_were_given_hold(files, limits):
    report = validated(files("a.onnx", 1000.0, -998.0), files("b.onnx", 1000.0 * (1 + 2 * ULP), -998.0), **limits)
    assert report.failed
    assert codes(report) == {"DK401"}


def test_a_page_of_text_is_within_what_the_detector_does_to_itself(shared_model, tmp_path):
    path = shared_model("ppocr_v4/det.onnx")
    rng = np.random.default_rng(0)
    # Dark strokes on paper: noise finds no text, and moves nothing.
    page = np.full((1, 3, 192, 256), 2.2, np.float32)
    for top in range(20, 180, 40):
        for left in range(10, 240, 14):
            page[..., top : top + 18, left : left + int(rng.integers(3, 9))] = -1.8
    np.savez(tmp_path / "x.npz", x=page)
    report = deploykit.convert(
        path, to="onnxruntime", output=tmp_path / "det.onnx", data=str(tmp_path / "x.npz"), samples=1
    )
    assert not report.failed
