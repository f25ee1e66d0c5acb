"""Sizes that commands take, and those that artifacts leave of them."""

from __future__ import annotations

import pytest

from deploykit.artifact import TensorSpec
from deploykit.data.request import bounds_of, dim_options
from deploykit.data.sizes import common_inputs, covering, with_bounds
from deploykit.errors import UsageError

INPUTS = (TensorSpec("x", "float32", ("n", 3, "m")), TensorSpec("z", "float32", ("n",)))


def test_bounds_as_texts_and_as_a_mapping() -> None:
    expected = {"n": [1, 8, 1, 8], "m": [2, None], "k": [4, 4], "j": [1, 5]}
    assert bounds_of(["n=1,8", "m=2..", "k=4", "j=1..5"]) == expected
    assert bounds_of({"n": {8, 1}, "m": "2..", "k": 4, "j": [1, 5]}) == expected
    assert dim_options(expected) == ["--dim", "n=1,8", "--dim", "m=2..", "--dim", "k=4..4", "--dim", "j=1..5"]
    with pytest.raises(UsageError):
        bounds_of({"n": "1;8"})


@pytest.mark.parametrize(
    ("given", "own", "expected"),
    [
        (None, [1, 8, 1, 8], [1, 8, 1, 8]),
        ([1, 64], [1, 8, 1, 4, 8], [1, 8, 1, 4, 8]),
        ([2, 6], [1, 8, 1, 4, 8], [4, 4, 4]),
        ([2, 3], [1, 8, 1, 8], [2, 3]),  # nothing in common: what was asked for, so that the artifact says it
        ([1, 3, 1, 3], [1, 8, 1, 8], [1, 3, 1, 3]),
        ([2, 6], [1, 8], [2, 6]),
        (None, [1, 8], [1, 8]),
    ],
)
def test_what_an_artifact_leaves_of_the_sizes(given, own, expected) -> None:
    request = {"dims": {} if given is None else {"n": given}}
    assert with_bounds(request, INPUTS, {}, {"z": [own]})["dims"] == {"n": expected}


def test_random_samples_cover_all_combinations() -> None:
    request = {"source": None, "samples": 4, "dims": {"n": [1, 9, 1, 5, 9], "m": [1, 2, 1, 2], "other": [1, 2, 1, 2]}}
    assert covering(request, INPUTS)["samples"] == 6
    assert covering({**request, "samples": 10}, INPUTS)["samples"] == 10
    assert covering({**request, "source": "data.npz"}, INPUTS)["samples"] == 4
    assert covering({**request, "source": "random:3"}, INPUTS)["samples"] == 6


def test_dimensions_without_a_name_have_bounds_of_their_own() -> None:
    model = (TensorSpec("x", "float32", ("?", 3, "?", "n")),)
    (found,) = common_inputs(model, (TensorSpec("x", "float32", ("a", 3, "b", "n")),))
    assert found.shape == ("x_dim0", 3, "x_dim2", "n")
    assert common_inputs(model, (TensorSpec("x", "float32", (2, 3, "b", 4)),))[0].shape == (2, 3, "x_dim2", 4)
    bounds = {"x": [[10, 20], [3, 3], [80, 100], [8, 8]]}
    assert with_bounds({}, (found,), bounds)["dims"] == {"x_dim0": [10, 20], "x_dim2": [80, 100], "n": [8, 8]}
