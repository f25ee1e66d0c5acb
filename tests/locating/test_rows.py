"""What a pair of tensors says about the two sides."""

from __future__ import annotations

import numpy as np
import pytest

from deploykit.locating.rows import compare_tensor
from deploykit.parity import TOLERANCES

FP32 = TOLERANCES["fp32"]


def test_the_first_element_beyond_the_limit_is_named_with_its_values():
    ref = np.ones((2, 3), np.float32)
    cand = ref.copy()
    cand[1, 1], cand[1, 2] = 1.5, 3.0
    row = compare_tensor("t", ref, cand, FP32)
    assert (row.agrees, row.first_bad, row.values) == (False, (1, 1), (1.0, 1.5))
    assert row.max_abs == 2.0


def test_the_same_infinities_and_nan_on_both_sides_agree():
    ref = np.array([1.0, -np.inf, np.nan, np.inf], np.float32)
    assert compare_tensor("t", ref, ref.copy(), FP32).agrees


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_on_one_side_does_not_agree(value):
    row = compare_tensor("t", np.array([1.0, 2.0]), np.array([1.0, value]), FP32)
    assert (row.agrees, row.not_finite, row.first_bad) == (False, True, (1,))
    assert "in the candidate" in row.problem
    assert row.as_dict()["values"][1] == str(value)


def test_another_shape_is_a_difference_and_added_axes_are_none():
    ref = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert compare_tensor("t", ref, ref[None], FP32).agrees
    assert compare_tensor("t", ref, ref[:1], FP32).problem == "shape [1, 3], [2, 3] in the reference"


@pytest.mark.parametrize(
    ("ref", "cand"),
    [
        (np.zeros((2, 3)), np.zeros((3, 2))),  # another arrangement: no element is known to be another one's
        (np.zeros(3, bool), np.zeros(3, np.int32)),
        (np.zeros(3, np.uint8), np.zeros(3, np.uint8)),
        (np.array(["a"]), np.array(["b"])),
    ],
)
def test_what_says_nothing_is_no_row(ref, cand):
    assert compare_tensor("t", ref, cand, FP32) is None


def test_where_only_the_noise_is_limited_the_largest_difference_is_shown():
    ref = np.ones(8, np.float32)
    cand = ref + np.array([0.2, 0, 0, 0.9, 0, 0, 0, 0], np.float32)
    assert compare_tensor("t", ref, cand, TOLERANCES["int8"]).first_bad == (3,)
