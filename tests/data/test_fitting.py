"""What is refused, with which sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest

from deploykit.artifact import TensorSpec
from deploykit.data.dtypes import cast
from deploykit.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from deploykit.data import Dataset

IMAGE = "image:float32[batch,3,8,8]"


def saved(folder: Path, **arrays: object) -> Path:
    np.savez(folder / "calib.npz", **arrays)
    return folder / "calib.npz"


def test_channels_last_are_recognised(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    path = saved(tmp_path, image=np.zeros((2, 8, 8, 3), np.float32))
    with pytest.raises(DataError) as caught:
        opened(path, IMAGE, purpose="calibration")
    assert caught.value.message == "sample 0 of calib.npz has shape (1, 8, 8, 3) for input 'image'"
    assert caught.value.context[0] == "expected float32 [batch, 3, 8, 8]"
    assert "channels are last" in caught.value.hint
    assert caught.value.code == "DK312"
    assert caught.value.file == str(path)


def test_channels_first_are_recognised(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    path = saved(tmp_path, image=np.zeros((2, 3, 8, 8), np.float32))
    with pytest.raises(DataError) as caught:
        opened(path, "image:float32[batch,8,8,3]")
    assert "channels are first" in caught.value.hint


def test_a_missing_leading_axis_is_hinted_at(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    path = saved(tmp_path, image=np.zeros((3, 8, 8), np.float32))
    with pytest.raises(DataError, match=r"\(3, 8, 8\)") as caught:
        opened(path, IMAGE)
    assert "array[None]" in caught.value.hint


def test_a_wrong_fixed_dimension_names_its_axis(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    path = saved(tmp_path, image=np.zeros((2, 3, 8, 9), np.float32))
    with pytest.raises(DataError) as caught:
        opened(path, IMAGE)
    assert caught.value.hint == "axis 3 must be 8, and it is 9"


def test_a_wrong_rank_is_refused(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    path = saved(tmp_path, image=np.zeros((2, 3), np.float32))
    with pytest.raises(DataError, match=r"shape \(2, 3\)"):
        opened(path, IMAGE)


def test_nan_in_calibration_names_the_sample_and_the_count(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    array = np.zeros((4, 5), np.float32)
    array[2, 1:3] = np.nan, np.inf
    data = opened(saved(tmp_path, x=array), "x:float32[n,5]", purpose="calibration")
    with pytest.raises(DataError, match=r"sample 2 of calib\.npz has 2 of 5 values for input 'x'") as caught:
        list(data)
    assert caught.value.code == "DK309"


def test_nan_elsewhere_is_a_warning_said_once(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    data = opened(saved(tmp_path, x=np.full((3, 2), np.nan, np.float32)), "x:float32[n,2]")
    assert len(list(data)) == len(list(data)) == 3
    assert [(finding.code, finding.severity) for finding in data.findings] == [("DK327", "warning")]


def test_float64_is_narrowed_with_a_note(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    data = opened(saved(tmp_path, x=np.full((3, 2), 0.1)), "x:float32[n,2]")
    assert {sample.feeds["x"].dtype.name for sample in data} == {"float32"}
    assert [finding.message for finding in data.findings] == ["calib.npz: float64 data is given as float32"]


def test_bytes_for_a_float_input_are_refused(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    data = opened(saved(tmp_path, x=np.zeros((3, 2), np.uint8)), "x:float32[n,2]")
    with pytest.raises(DataError, match="uint8 and input 'x' takes float32") as caught:
        list(data)
    assert "preprocess" in caught.value.hint
    assert caught.value.code == "DK308"


def test_a_shared_dimension_that_differs_is_a_warning(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    path = saved(tmp_path, a=np.zeros((1, 4), np.float32), b=np.zeros((1, 5), np.float32))
    data = opened(path, "a:float32[n,t]", "b:float32[n,t]")
    list(data)
    assert [(finding.code, finding.severity) for finding in data.findings] == [("DK326", "warning")]
    assert "4 in 'a' and 5 in 'b'" in data.findings[0].message


def test_one_value_takes_the_shape_of_ones(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    data = opened(saved(tmp_path, x=np.zeros((3, 2), np.float32), sr=np.int64(8000)), "x:float32[n,2]", "sr:int64[1]")
    assert [sample.feeds["sr"].tolist() for sample in data] == [[8000]] * 3


@pytest.mark.parametrize(
    ("array", "dtype", "noted"),
    [
        (np.array([1.5], np.float32), "float32", False),
        (np.array([1.5], np.float64), "float16", True),
        (np.array([1.5], np.float16), "float32", True),
        (np.array([1.5], np.float32), "bfloat16", True),
        (np.array([1.5], ml_dtypes.bfloat16), "float32", True),
        (np.array([7], np.int64), "int32", True),
        (np.array([7], np.int32), "int64", True),
        (np.array([200], np.int64), "uint8", True),
        (np.array([0, 1], np.uint8), "bool", True),
        (np.array([True]), "int64", True),
        (np.array(["a", "é"]), "string", False),
        (np.array([b"a"]), "string", False),
    ],
)
def test_casts_that_keep_every_value(array: np.ndarray, dtype: str, noted: bool) -> None:
    result, said = cast(array, TensorSpec("x", dtype, ("n",)), "the array")
    assert (said is not None) is noted
    if dtype == "string":
        assert all(isinstance(item, str) for item in result)
    else:
        assert result.dtype.name == dtype
        np.testing.assert_array_equal(result.astype(np.float64), array.astype(np.float64))


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.array([70000.0], np.float32), "float16"),
        (np.array([300], np.int64), "uint8"),
        (np.array([-1], np.int64), "uint64"),
        (np.array([2**40], np.int64), "int32"),
        (np.array([1.0], np.float32), "int64"),
        (np.array([1], np.int64), "float32"),
        (np.array([2], np.uint8), "bool"),
        (np.array([1], np.int64), "string"),
        (np.array(["1"]), "float32"),
        (np.array([1j]), "float32"),
        (np.array([True]), "float32"),
        (np.array([object()], object), "float32"),
    ],
)
def test_casts_that_could_change_values_are_refused(array: np.ndarray, dtype: str) -> None:
    with pytest.raises(DataError) as caught:
        cast(array, TensorSpec("x", dtype, ("n",)), "the array")
    assert caught.value.code == "DK308"
