import numpy as np
import pytest
from quantize_models import onnx_text

from deploykit.data import data_request
from deploykit.errors import DataError
from deploykit.quantize.measuring import measure_peaks, measure_ranges
from deploykit.quantize.plan import observable
from deploykit.quantize.prepare import load_float
from deploykit.quantize.settings import Settings
from deploykit.quantize.thresholds import METHODS

RNG = np.random.default_rng(0)


@pytest.fixture
def case(tmp_path):
    """A model, its path and a folder of ten samples with an outlier."""
    path = onnx_text(
        "g (float[n,4] x) => (float[n,4] y) { a = MatMul (x, w)  r = Relu (a)  y = MatMul (r, w) }",
        tmp_path / "m.onnx",
        w=np.eye(4, dtype=np.float32),
    )
    folder = tmp_path / "calib"
    folder.mkdir()
    for index in range(10):
        x = RNG.normal(size=(500, 4)).astype(np.float32)
        x[0, 0] = 40.0 if index == 3 else 0.0
        np.savez(folder / f"{index}.npz", x=x)
    return load_float(path)[0], path, folder


def measured(case, steps=None, **settings):
    model, path, folder = case
    request = data_request(str(folder), "calibration")
    chosen = Settings(data=request, model_sha256="m", data_sha256="d", **settings)
    return measure_ranges(
        model, observable(model), path, chosen, (lambda step: None) if steps is None else steps.append
    )


def test_another_method_needs_no_other_run(case):
    steps = []
    auto = measured(case, steps)
    assert [step.done for step in steps] == list(range(1, 11))
    for method in METHODS:
        found = auto.with_method(method)
        assert found == measured(case, method=method).ranges
        assert found.method == method
    assert len(steps) == 10
    assert auto.with_method("percentile").tensors["x"].interval(symmetric=True).high < 6
    assert auto.with_method("minmax").tensors["x"].interval(symmetric=True).high == 40.0


def test_ranges_from_a_file_run_once_when_another_method_is_asked_for(case, tmp_path):
    file = str(tmp_path / "r.json")
    first = measured(case, ranges=file)
    steps = []
    again = measured(case, steps, ranges=file)
    assert [finding.code for finding in again.findings] == ["DK360"]
    assert (again.ranges, steps) == (first.ranges, [])
    assert again.with_method("auto") == first.ranges
    assert again.with_method("mse") == first.with_method("mse")
    assert again.with_method("percentile") == first.with_method("percentile")
    assert len(steps) == 10


def test_a_relu_and_its_product_with_one_share_what_was_seen(case):
    found = measured(case).ranges.tensors
    assert found["r"].minimum == 0.0
    assert found["r"].maximum == found["x"].maximum == 40.0


def test_peaks_cover_every_float_tensor(case):
    model, path, folder = case
    request = data_request(str(folder), "calibration")
    peaks = measure_peaks(model, path, Settings(data=request), lambda step: None)[0]
    assert set(peaks) == {"x", "a", "r", "y"}
    assert peaks["y"] == 40.0


def test_peaks_leave_sequences_out(tmp_path):
    text = """g (float[2] a, float[2] b) => (float[4] y) {
        s = SequenceConstruct (a, b)
        c = ConcatFromSequence <axis=0> (s)
        y = Relu (c)
    }"""
    path = onnx_text(text, tmp_path / "m.onnx")
    np.savez(tmp_path / "calib.npz", a=np.float32([[1, 2]]), b=np.float32([[3, -4]]))
    request = data_request(str(tmp_path / "calib.npz"), "calibration")
    peaks = measure_peaks(load_float(path)[0], path, Settings(data=request), lambda step: None)[0]
    assert peaks == {"a": 2.0, "b": 4.0, "c": 4.0, "y": 3.0}


def test_an_unfinished_calibration_needs_its_data(case, tmp_path):
    model, path, _ = case
    file = tmp_path / "r.json"
    np.savez(tmp_path / "r.npz", about=np.array("{}"))
    (tmp_path / "r.npz").rename(file)
    for data in (data_request(None, "parity"), data_request("random", "accuracy")):
        settings = Settings(data=data, ranges=str(file), model_sha256="m")
        with pytest.raises(DataError) as caught:
            measure_ranges(model, observable(model), path, settings, lambda step: None)
        assert caught.value.code == "DK304"
