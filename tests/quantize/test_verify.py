"""What a result is compared on, and what is said when it cannot be."""

import numpy as np
import pytest
from quantize_models import onnx_text

from deploykit.data.request import data_request
from deploykit.quantize.verify import verify_job

# Odd lengths are refused: two halves are added.
HALVES = """g (float[n] x) => (float[m] y) {
    two = Constant <value_ints=[2,-1]> ()
    pairs = Reshape (x, two)
    y = ReduceSum (pairs)
}"""


@pytest.fixture
def model(tmp_path):
    return str(onnx_text(HALVES, tmp_path / "m.onnx"))


def compared(model, **data):
    return verify_job(model, model, "int8-weights", {**data_request(None, "parity"), **data})


def test_random_inputs_that_the_float_model_refuses_are_left_out(model):
    found = compared(model)
    (said,) = (finding for finding in found["findings"] if finding["code"] == "DK377")
    assert said["severity"] == "warning"
    assert 0 < found["samples"] < 16
    assert f"on {found['samples']} of 16 random inputs only" in said["message"]
    assert all(row["passed"] for row in found["outputs"])


def test_none_is_no_comparison(model):
    found = compared(model, dims={"n": (3, 3)})
    assert found["samples"] == 0
    assert found["execution"] == "none"
    assert "DK377" in [finding["code"] for finding in found["findings"]]


def test_all_are_compared_where_the_model_takes_them(model):
    found = compared(model, dims={"n": (4, 4)})
    assert found["samples"] == 16
    assert "DK377" not in [finding["code"] for finding in found["findings"]]


def test_a_failed_gate_of_calibrated_weights_does_not_ask_for_calibration(tmp_path):
    text = "g (float[n,4] x) => (float[n,4] y) { y = MatMul (x, w) }"
    reference = onnx_text(text, tmp_path / "m.onnx", w=np.eye(4, dtype=np.float32))
    candidate = onnx_text(text, tmp_path / "q.onnx", w=2 * np.eye(4, dtype=np.float32))
    np.savez(tmp_path / "calib.npz", x=np.ones((3, 4), np.float32))
    hints = {}
    for purpose, source in (("parity", None), ("calibration", str(tmp_path / "calib.npz"))):
        found = verify_job(str(reference), str(candidate), "int4-weights", data_request(source, purpose))
        (failed,) = (finding for finding in found["findings"] if finding["code"] == "DK401")
        hints[purpose] = failed["hint"]
    assert "--calib" in hints["parity"]
    assert "--calib" not in hints["calibration"]


@pytest.mark.parametrize("precision", ["int8", "mixed"])
def test_calibrated_models_are_not_compared_on_random_inputs(model, precision):
    found = verify_job(model, model, precision, data_request(None, "parity"))
    assert found["samples"] == 0
    (said,) = found["findings"]
    assert said["code"] == "DK377"
    assert "--calib" in said["hint"]
