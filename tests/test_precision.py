"""The table of precisions against the places that have to agree with it."""

from typing import get_args

import pytest

import deploykit
from deploykit import precision
from deploykit.errors import DataError, UsageError
from deploykit.parity import TOLERANCES
from deploykit.quantize.jobs import JOBS
from deploykit.target import get_target, target_names


def test_every_precision_has_a_job_a_name_and_a_row_of_tolerances() -> None:
    assert list(precision.PRECISIONS) == list(JOBS) == list(get_args(precision.Name))
    assert set(precision.PRECISIONS) <= set(TOLERANCES)


@pytest.mark.parametrize("name", target_names())
def test_targets_take_precisions_of_the_table(name: str) -> None:
    assert set(get_target(name).precisions) <= {"fp32", *precision.PRECISIONS}


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"precision": "int4-weights", "block_size": 24}, "DK343"),
        ({"precision": "int8", "calib": "random", "smooth_quant": 1.5}, "DK344"),
        ({"precision": "fp16", "bias_correction": True}, "DK345"),
        ({"precision": "int8-weights", "ranges": "r.json"}, "DK345"),
        ({"precision": "int8", "calib": "random", "block_size": 64}, "DK345"),
        ({"precision": "fp16", "method": "entropy"}, "DK382"),
        ({"precision": "int4-weights", "method": "minmax"}, "DK382"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path, options, code) -> None:
    with pytest.raises(UsageError) as caught:
        deploykit.quantize(tmp_path / "missing.onnx", output=tmp_path / "out.onnx", **options)
    assert caught.value.code == code


@pytest.mark.parametrize("name", [name for name in precision.PRECISIONS if precision.requires_calibration(name)])
def test_data_is_asked_for_before_the_model(tmp_path, name) -> None:
    with pytest.raises(DataError) as caught:
        deploykit.quantize(tmp_path / "missing.onnx", output=tmp_path / "out.onnx", precision=name)
    assert caught.value.code == "DK304"
