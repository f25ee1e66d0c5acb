"""What direct routes share: sizes of outputs from two runs, and the samples that an artifact is compared on."""

from __future__ import annotations

import numpy as np

from deploykit.artifact import TensorSpec
from deploykit.data.request import data_request, dim_ranges
from deploykit.data.samples import Sample
from deploykit.exporters import direct


def zeros(**shapes):
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


def test_sizes_of_outputs_are_numbers_symbols_or_names_of_their_own():
    runs = [({"batch": 2, "n": 3}, zeros(y=(2, 3, 8), z=(6,))), ({"batch": 5, "n": 7}, zeros(y=(5, 7, 8), z=(35,)))]
    y, z = direct.output_specs(runs)
    assert (y.shape, z.shape) == (("batch", "n", 8), ("z_0",))


def test_one_run_says_numbers():
    (y,) = direct.output_specs([({}, zeros(y=(2, 4)))])
    assert y.shape == (2, 4)


class Artifact:
    """Runs for 3 to 5 rows."""

    bounds = {"x": [[3, 5], [4, 4]]}


X = (TensorSpec("x", "float32", ("batch", 4)),)


def test_ranges_are_narrowed_to_what_the_artifact_takes():
    found = direct._allowed(dim_ranges({"batch": [1, None]}), X, Artifact())
    assert (found["batch"].minimum, found["batch"].maximum) == (3, 5)
    found = direct._allowed(dim_ranges({"batch": [4, None]}), X, Artifact())
    assert found["batch"].minimum == 4


def test_a_sample_of_another_size_is_left_out():
    symbols = dim_ranges({"batch": [1, 4, 1, 4]})
    fits = [direct._fits(Sample(zeros(x=(rows, 4)), None, "s"), X, symbols) for rows in (1, 2, 4, 5)]
    assert fits == [True, False, True, False]


def test_random_integers_reach_every_row_of_a_table_and_users_data_stays():
    ids = (TensorSpec("ids", "int64", ("batch", 64)),)
    symbols = dim_ranges({"batch": [1, 4]})
    chosen, _ = direct._samples(data_request(None, "parity", samples=8), ids, symbols, {"ids": 9}, 0)
    seen = np.unique(np.concatenate([sample.feeds["ids"].ravel() for sample in chosen]))
    assert seen.tolist() == list(range(10))


def test_users_data_is_not_changed(tmp_path):
    ids = (TensorSpec("ids", "int64", ("batch", 4)),)
    given = np.arange(8, dtype=np.int64).reshape(2, 4)
    np.savez(tmp_path / "ids.npz", ids=given)
    request = data_request(str(tmp_path / "ids.npz"), "parity", samples=8)
    chosen, _ = direct._samples(request, ids, dim_ranges({"batch": [1, 4]}), {"ids": 3}, 0)
    rows = np.concatenate([sample.feeds["ids"] for sample in chosen])
    assert set(map(tuple, rows)) == set(map(tuple, given))
