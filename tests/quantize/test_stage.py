import json
from pathlib import Path

import pytest

from deploykit.quantize.stage import AccuracyGate, QuantizeStage
from deploykit.target import QuantizationScheme, get_target


def request(**changes):
    base = {"source": "data/calib.npz", "samples": None, "seed": 0, "label": None, "dims": {}, "contract": None}
    return {**base, "purpose": "calibration", **changes}


def stage(**changes):
    facts = {"scheme": QuantizationScheme(), "data_request": request(), "data_sha256": "aa", "target": "tensorrt-rtx"}
    return QuantizeStage("int8", **{**facts, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"scheme": get_target("onnxruntime").scheme},
        {"data_sha256": "bb"},
        {"data_request": request(samples=8)},
        {"data_request": request(contract={"x": {"carry": "y"}})},
        {"method": "mse"},
        {"exclude": ("Gemm",)},
        {"keep_io": True},
        {"gate": AccuracyGate(request(purpose="accuracy"), "top1", 0.5)},
    ],
)
def test_options_tell_every_decision_apart(changes):
    assert stage(**changes).options != stage().options


def test_options_hold_no_paths_and_are_json():
    text = json.dumps(stage(ranges=Path("/somewhere/r.json")).options)
    assert "somewhere" not in text
    assert "calib.npz" not in text


def test_ranges_are_keyed_by_the_choice_of_samples_and_shared_by_schemes():
    assert stage().data_key == stage(scheme=get_target("openvino").scheme).data_key
    assert stage().data_key != stage(data_request=request(samples=8)).data_key
    assert stage(data_request=None).data_key == ""


def test_random_calibration_is_said():
    (finding,) = stage(data_request=request(source="random:3")).requires({})
    assert (finding.code, finding.severity) == ("DK359", "warning")
    assert stage().requires({}) == []
