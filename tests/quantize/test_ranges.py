import json
import math

import pytest

from deploykit.errors import DataError, InvalidFileError
from deploykit.quantize.ranges import Ranges, TensorRange, load_ranges
from deploykit.quantize.thresholds import Interval

KEYS = {"model_sha256": "m", "data_sha256": "d", "method": "mse"}
FOUND = Ranges(
    "m",
    "d",
    "mse",
    7,
    {
        "x": TensorRange(-1.0, 2.0, 7, 0.5, 1, 1.9, Interval(-1.0, 2.0), Interval(-1.5, 1.5, "mse")),
        "past": TensorRange(0.0, 0.0, 0),
    },
)


def test_what_is_saved_is_what_is_loaded(tmp_path):
    FOUND.save(tmp_path / "r.json")
    assert load_ranges(tmp_path / "r.json", **KEYS) == FOUND


def test_the_same_ranges_give_the_same_bytes(tmp_path):
    FOUND.save(tmp_path / "a.json")
    FOUND.save(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


@pytest.mark.parametrize(("key", "what"), [("model_sha256", "model"), ("data_sha256", "data"), ("method", "method")])
def test_ranges_of_something_else_are_refused_with_both_values(tmp_path, key, what):
    FOUND.save(tmp_path / "r.json")
    with pytest.raises(DataError, match=what) as caught:
        load_ranges(tmp_path / "r.json", **{**KEYS, key: "other"})
    assert caught.value.code == "DK362"
    assert "other" in caught.value.context[0]
    assert KEYS[key] in caught.value.context[1]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "deploykit.ranges/1"}', '{"schema": "x", "tensors": {}}'])
def test_other_files_are_refused(tmp_path, text):
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(InvalidFileError, match="no calibration ranges"):
        load_ranges(tmp_path / "r.json", **KEYS)


def test_a_tensor_that_never_fired_has_no_range():
    assert FOUND.unseen(["x", "past", "unknown"]) == {"past", "unknown"}
    with pytest.raises(ValueError, match="never fired"):
        FOUND.tensors["past"].interval(symmetric=True)


@pytest.mark.parametrize(
    "change",
    [
        {"factors": {"x": [1.0, "a"]}},
        {"factors": {"x": [1.0, 0.0]}},
        {"factors": {"x": 2.0}},
        {"factors": None},
        {"tensors": {"x": {"minimum": 0.0, "maximum": 1.0, "samples": 1, "affine": [math.nan, 1.0, "mse"]}}},
        {"tensors": {"x": {"minimum": 0.0, "maximum": 1.0, "samples": 1, "affine": [2.0, 1.0, "mse"]}}},
        {"tensors": {"x": {"minimum": 0.0, "maximum": 1.0, "samples": 1, "affine": ["a", 1.0, "mse"]}}},
    ],
)
def test_numbers_that_no_calibration_gives_are_refused(tmp_path, change):
    path = tmp_path / "r.json"
    FOUND.save(path)
    facts = json.loads(path.read_text())
    for found in change.get("tensors", {}).values():
        found["symmetric"] = None
    path.write_text(json.dumps({**facts, **change}))
    with pytest.raises(InvalidFileError) as caught:
        load_ranges(path, **KEYS)
    assert caught.value.code == "DK361"
