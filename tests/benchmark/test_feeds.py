"""Batches of a benchmark: which axis, which rows, one shape."""

from __future__ import annotations

import numpy as np
import pytest

from deploykit.artifact import TensorSpec
from deploykit.benchmark.feeds import MAX_BATCHES, batch_axes, batches, fixed_dims, prepare_job, read_feeds
from deploykit.data.samples import Sample
from deploykit.errors import DataError

X = TensorSpec("x", "float32", ("n", 3))
SILERO = (
    TensorSpec("input", "float32", ("batch", "sequence")),
    TensorSpec("sr", "int64", ()),
    TensorSpec("state", "float32", (2, "batch", 128)),
)


def samples(*feeds):
    return [Sample(feed, None, f"s{i}") for i, feed in enumerate(feeds)]


def test_the_batch_is_where_its_symbol_stands():
    assert batch_axes(SILERO, 4) == ({"input": 0, "sr": None, "state": 1}, 4)
    unnamed = (TensorSpec("input", "float32", ("a", "b")), TensorSpec("state", "float32", (2, "c", 128)))
    assert batch_axes(unnamed, 4) == ({"input": 0, "state": 1}, 4)


def test_a_fixed_batch_is_kept_and_another_one_refused():
    fixed = (TensorSpec("x", "float32", (8, 3)),)
    assert batch_axes(fixed, 1) == ({"x": None}, 8)
    assert batch_axes(fixed, 8) == ({"x": None}, 8)
    with pytest.raises(DataError, match="batch of 4") as caught:
        batch_axes(fixed, 4)
    assert caught.value.code == "DK444"


def test_samples_are_joined_in_order():
    rows = [np.full((1, 3), i, np.float32) for i in range(5)]
    made = list(batches(samples(*({"x": row} for row in rows)), {"x": 0}, 2))
    assert [feed["x"][:, 0].tolist() for feed in made] == [[0, 1], [2, 3]]


def test_state_is_joined_along_its_own_axis():
    feeds = [{"input": np.zeros((1, 5)), "sr": np.array(16000), "state": np.zeros((2, 1, 128))} for _ in range(3)]
    (made,) = batches(samples(*feeds), {"input": 0, "sr": None, "state": 1}, 3)
    assert {name: array.shape for name, array in made.items()} == {"input": (3, 5), "sr": (), "state": (2, 3, 128)}


def test_only_equal_shapes_share_a_batch():
    lengths = [4, 5, 4, 5, 6]
    feeds = [{"x": np.zeros((1, n, 2))} for n in lengths]
    assert [feed["x"].shape for feed in batches(samples(*feeds), {"x": 0}, 2)] == [(2, 4, 2), (2, 5, 2)]


def test_too_few_samples_are_taken_again():
    feeds = [{"x": np.full((1, 3), i)} for i in range(2)]
    (made,) = batches(samples(*feeds), {"x": 0}, 5)
    assert made["x"][:, 0].tolist() == [0, 1, 0, 1, 0]
    with pytest.raises(DataError):
        list(batches([], {"x": 0}, 1))


def test_random_data_has_one_size():
    axes, rows = batch_axes(SILERO, 3)
    assert fixed_dims(SILERO, {"sequence": [256, 512]}, axes, rows) == {"batch": [3, 3], "sequence": [512, 512]}
    assert fixed_dims(SILERO, {"sequence": [256, None]}, axes, rows)["sequence"] == [256, 256]
    assert fixed_dims(SILERO, {}, axes, rows)["sequence"] == [8, 8]


def test_written_feeds_are_read_back(tmp_path):
    data = {"source": None, "samples": None, "seed": 0, "label": None, "dims": {}, "contract": None}
    specs = [X.as_dict(), TensorSpec("t", "string", ("n",)).as_dict()]
    prepared = prepare_job("m.xml", specs, {**data, "purpose": "bench"}, 4, str(tmp_path))
    assert (prepared["batch"], len(prepared["files"]), prepared["description"]) == (4, MAX_BATCHES, "random:0")
    assert "random:0" in prepared["findings"][0]["message"]
    feeds = [sample.feeds for sample in read_feeds(prepared["files"])]
    assert {feed["x"].shape for feed in feeds} == {(4, 3)}
    assert feeds[0]["t"].dtype.kind == "U"
