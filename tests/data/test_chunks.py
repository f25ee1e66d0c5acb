"""The rules by which one .npz becomes samples."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploykit.artifact import TensorSpec
from deploykit.data import open_data
from deploykit.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable

    from deploykit.data import Dataset


def saved(folder: Path, compressed: bool = False, **arrays: object) -> Path:
    path = folder / "data.npz"
    (np.savez_compressed if compressed else np.savez)(path, **arrays)
    return path


@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(1, 23),
    fixed=st.none() | st.integers(1, 7),
    rest=st.lists(st.integers(1, 3), max_size=2),
    compressed=st.booleans(),
    fortran=st.booleans(),
)
def test_the_samples_put_together_are_the_array(
    rows: int, fixed: int | None, rest: list[int], compressed: bool, fortran: bool
) -> None:
    size = fixed or 1
    array = np.random.default_rng(0).standard_normal((rows, *rest)).astype(np.float32)
    spec = TensorSpec("x", "float32", ("n" if fixed is None else fixed, *rest))
    with tempfile.TemporaryDirectory() as folder:
        path = saved(Path(folder), compressed, x=np.asfortranarray(array) if fortran else array)
        if rows < size:
            with pytest.raises(DataError, match="shape"):
                open_data(str(path), (spec,), purpose="parity")
            return
        data = open_data(str(path), (spec,), purpose="parity")
        pieces = [sample.feeds["x"] for sample in data]
    assert len(pieces) == data.total == rows // size
    assert all(piece.shape == (size, *rest) for piece in pieces)
    whole = rows - rows % size
    np.testing.assert_array_equal(np.concatenate(pieces), array[:whole])
    assert [finding.code for finding in data.findings] == (["DK324"] if whole < rows else [])


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 9), st.lists(st.integers(0, 3), min_size=1, max_size=3), st.booleans())
def test_one_more_rank_gives_each_a_i(count: int, shape: list[int], compressed: bool) -> None:
    array = np.random.default_rng(0).standard_normal((count, *shape)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = saved(Path(folder), compressed, x=array)
        data = open_data(str(path), (TensorSpec("x", "float32", tuple(shape)),), purpose="parity")
        pieces = [sample.feeds["x"] for sample in data]
    np.testing.assert_array_equal(np.stack(pieces), array)
    assert data.total == count


def test_scalars_go_whole_to_every_sample(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    path = saved(tmp_path, x=np.zeros((5, 4), np.float32), sr=np.int64(16000))
    samples = list(opened(path, "x:float32[n,4]", "sr:int64[]"))
    assert [int(sample.feeds["sr"]) for sample in samples] == [16000] * 5
    assert samples[0].feeds["sr"].shape == ()


def test_different_counts_make_the_file_one_feed(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    path = saved(tmp_path, a=np.zeros((1, 4), np.float32), b=np.ones((3, 4), np.float32))
    data = opened(path, "a:float32[m,4]", "b:float32[n,4]")
    (sample,) = data
    assert sample.feeds["b"].shape == (3, 4)
    assert [finding.code for finding in data.findings] == ["DK313"]


def test_one_feed_must_fit_as_a_whole(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    path = saved(tmp_path, a=np.zeros((5, 3), np.float32), b=np.ones((16, 8), np.float32))
    with pytest.raises(DataError) as caught:
        opened(path, "a:float32[1,3]", "b:float32[16,8]")
    assert caught.value.code == "DK312"
    assert caught.value.tensor == "a"


def test_a_first_dimension_of_zero_stays_whole(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    path = saved(tmp_path, past=np.zeros((0, 4), np.float32), new=np.ones((3, 4), np.float32))
    samples = list(opened(path, "past:float32[0,4]", "new:float32[n,4]"))
    assert [sample.feeds["past"].shape for sample in samples] == [(0, 4)] * 3


def test_labels_come_one_a_sample(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    path = saved(tmp_path, x=np.zeros((3, 4), np.float32), y=np.array([7, 8, 9]))
    data = opened(path, "x:float32[n,4]", purpose="accuracy")
    assert data.labelled
    assert [sample.label for sample in data] == [7, 8, 9]


def test_labels_of_a_fixed_batch_come_in_batches(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    path = saved(tmp_path, x=np.zeros((6, 4), np.float32), y=np.arange(6))
    labels = [sample.label.tolist() for sample in opened(path, "x:float32[2,4]", purpose="accuracy")]
    assert labels == [[0, 1], [2, 3], [4, 5]]


def test_labels_may_have_another_name(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    path = saved(tmp_path, x=np.zeros((2, 4), np.float32), kind=np.array([1, 2]))
    assert [sample.label for sample in opened(path, "x:float32[n,4]", label="kind")] == [1, 2]


def test_an_input_named_y_is_no_label(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    path = saved(tmp_path, x=np.zeros((2, 4), np.float32), y=np.ones((2, 4), np.float32))
    data = opened(path, "x:float32[n,4]", "y:float32[n,4]")
    assert not data.labelled
    assert [set(sample.feeds) for sample in data] == [{"x", "y"}] * 2


def test_too_few_labels_are_refused(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    path = saved(tmp_path, x=np.zeros((5, 4), np.float32), y=np.arange(4))
    with pytest.raises(DataError, match="5 samples and 4 labels"):
        opened(path, "x:float32[n,4]")


def test_no_rows_are_refused(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    path = saved(tmp_path, x=np.zeros((0, 4), np.float32))
    with pytest.raises(DataError, match="no samples") as caught:
        opened(path, "x:float32[n,4]", purpose="calibration")
    assert caught.value.code == "DK303"


def test_the_only_array_of_a_one_input_model_may_have_any_name(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    path = saved(tmp_path, images=np.zeros((2, 4), np.float32), y=np.arange(2))
    data = opened(path, "x:float32[n,4]")
    assert [list(sample.feeds) for sample in data] == [["x"], ["x"]]
    assert [finding.code for finding in data.findings] == ["DK321"]


def test_an_unknown_name_is_refused_with_the_nearest(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    path = saved(tmp_path, image=np.zeros((2, 4), np.float32), maks=np.zeros((2, 4), np.float32))
    with pytest.raises(DataError, match="'maks'") as caught:
        opened(path, "image:float32[n,4]", "mask:float32[n,4]")
    assert caught.value.code == "DK301"
    assert "'mask'" in caught.value.hint


def test_an_input_without_data_is_named(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    path = saved(tmp_path, image=np.zeros((2, 4), np.float32))
    with pytest.raises(DataError, match="nothing for input 'mask'"):
        opened(path, "image:float32[n,4]", "mask:float32[n,4]")


def test_a_single_npy_feeds_a_one_input_model(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.save(tmp_path / "x.npy", array)
    pieces = [sample.feeds["input"] for sample in opened(tmp_path / "x.npy", "input:float32[n,4]")]
    np.testing.assert_array_equal(np.concatenate(pieces), array)


def test_a_single_npy_cannot_feed_two_inputs(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    np.save(tmp_path / "x.npy", np.zeros((3, 4), np.float32))
    with pytest.raises(DataError, match="takes 2 inputs"):
        opened(tmp_path / "x.npy", "a:float32[n,4]", "b:float32[n,4]")
