"""Parity numbers against plain numpy over the whole set, and what passes."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploykit.parity import TOLERANCES, OutputComparison, Tolerance, row_for


def compared(reference, candidate, tolerance="fp32"):
    comparison = OutputComparison("y", TOLERANCES[tolerance] if isinstance(tolerance, str) else tolerance)
    comparison.add(np.asarray(reference), np.asarray(candidate))
    return comparison


def test_table_is_the_contract():
    rows = {name: (row.rtol, row.atol_factor, row.min_sqnr_db) for name, row in TOLERANCES.items()}
    assert rows["fp32"] == (1e-4, 1e-5, None)
    assert rows["fp16"] == (1e-2, 2e-3, None)
    assert rows["bf16"] == (5e-2, 1e-2, None)
    integers = ("int8", "int8-dynamic", "int8-weights", "int4-weights")
    assert all(rows[name] == (None, None, 20.0) for name in integers)
    assert rows["int8-parent"] == (None, None, 30.0)
    assert all(row.note for row in TOLERANCES.values())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 6), st.floats(1e-6, 1e3))
def test_streamed_numbers_equal_those_of_the_whole_set(seed, samples, spread):
    rng = np.random.default_rng(seed)
    # Sizes over many decades, so that the floor of max_rel matters and moves from sample to sample.
    refs = [
        (rng.standard_normal((3, 5)) * 10.0 ** rng.uniform(-6, np.log10(spread) + 2, (3, 5))).astype(np.float32)
        for _ in range(samples)
    ]
    cands = [(r + rng.standard_normal(r.shape) * 10.0 ** rng.uniform(-8, 0, r.shape)).astype(np.float32) for r in refs]
    comparison = OutputComparison("y", TOLERANCES["fp16"])
    for ref, cand in zip(refs, cands, strict=True):
        comparison.add(ref, cand)
    row = comparison.result()
    ref, cand = np.concatenate(refs).astype(np.float64).ravel(), np.concatenate(cands).astype(np.float64).ravel()
    diff, top = np.abs(ref - cand), np.abs(ref).max()
    assert row["max_abs"] == diff.max()
    assert row["max_rel"] == pytest.approx((diff / np.maximum(np.abs(ref), 1e-3 * top)).max(), rel=1e-12)
    assert row["sqnr_db"] == pytest.approx(10 * np.log10((ref**2).sum() / (diff**2).sum()))
    assert row["cosine"] == pytest.approx(ref @ cand / np.linalg.norm(ref) / np.linalg.norm(cand))
    assert row["passed"] == bool((diff <= 1e-2 * np.abs(ref) + 2e-3 * top).all())
    assert not row["exact"]


def test_equal_outputs_are_exact_without_an_sqnr():
    row = compared(np.ones((2, 3), np.float32), np.ones((2, 3), np.float32), "int8").result()
    assert (row["exact"], row["sqnr_db"], row["passed"], row["cosine"]) == (True, None, True, pytest.approx(1.0))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("side", ["reference", "candidate", "both"])
def test_nan_and_infinities_never_pass(bad, side):
    good, broken = np.array([1.0, 2.0, 3.0]), np.array([1.0, bad, 3.0])
    reference = good if side == "candidate" else broken
    candidate = good if side == "reference" else broken
    comparison = compared(reference, candidate, Tolerance(rtol=1e9, atol=1e9))
    row = comparison.result()
    assert not row["passed"]
    assert not row["exact"]
    (finding,) = comparison.findings()
    assert (finding.code, finding.tensor) == ("DK402", "y")
    assert "1 in the" in finding.message
    assert bool(finding.hint) == ("in the reference" in finding.message)


def test_a_nan_in_one_sample_is_not_washed_out_by_later_ones():
    comparison = OutputComparison("y", TOLERANCES["fp32"])
    comparison.add(np.array([np.nan]), np.array([0.0]))
    for _ in range(100):
        comparison.add(np.ones(1), np.ones(1))
    assert not comparison.passed


def test_other_shape_fails_and_names_both():
    comparison = compared(np.zeros((2, 3)), np.zeros((3, 2)))
    (finding,) = comparison.findings()
    assert finding.code == "DK403"
    assert "[3, 2]" in finding.message
    assert "[2, 3]" in finding.message
    assert comparison.result()["max_abs"] is None


def test_float_for_integer_fails():
    (finding,) = compared(np.zeros(3, np.int64), np.zeros(3, np.float32)).findings()
    assert finding.code == "DK403"


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_narrower_float_is_compared_and_noted(dtype):
    values = np.linspace(-3, 3, 50, dtype=np.float32)
    comparison = compared(values, values.astype(dtype), "bf16")
    assert comparison.passed
    assert [(f.code, f.severity) for f in comparison.findings()] == [("DK405", "note")]


def test_labels_must_be_equal_and_the_share_is_told():
    comparison = compared(np.array([1, 2, 3, 4]), np.array([1, 2, 3, 5]), "int8")
    row = comparison.result()
    assert (row["passed"], row["mismatch_share"], row["sqnr_db"], row["max_abs"]) == (False, 0.25, None, 1.0)
    assert "1 of 4" in comparison.findings()[0].message
    assert compared(np.array([1, 2]), np.array([1, 2], np.int32)).passed


def test_strings_and_booleans_are_compared_exactly():
    assert compared(np.array(["a", "b"], object), np.array(["a", "b"], object)).passed
    assert not compared(np.array(["a", "b"], object), np.array(["a", "c"], object)).passed
    assert not compared(np.array([True, False]), np.array([True, True])).passed


def test_maps_are_compared_as_a_matrix():
    comparison = OutputComparison("p", TOLERANCES["fp32"])
    comparison.add([{0: 0.25, 1: 0.75}], [{1: 0.75, 0: 0.25}])
    assert comparison.exact


def test_empty_tensors_are_equal():
    row = compared(np.zeros((0, 4), np.float32), np.zeros((0, 4), np.float32)).result()
    assert (row["passed"], row["exact"], row["max_abs"]) == (True, True, 0.0)


def test_no_sample_is_not_a_pass():
    comparison = OutputComparison("y", TOLERANCES["fp32"])
    assert not comparison.passed
    assert comparison.findings()[0].code == "DK401"


def test_zero_reference_with_a_different_candidate_fails_every_row():
    for name in TOLERANCES:
        assert not compared(np.zeros(4), np.array([0, 0, 0, 1e-3]), name).passed, name


def test_a_small_output_is_judged_by_the_largest_value_of_all_samples():
    comparison = OutputComparison("y", Tolerance(rtol=0.0, atol_factor=1e-5))
    comparison.add(np.array([1e-6]), np.array([2e-6]))
    assert not comparison.passed
    comparison.add(np.array([1.0]), np.array([1.0]))
    assert comparison.passed


def test_failure_names_number_and_limit():
    (finding,) = compared(np.array([1.0, 2.0]), np.array([1.0, 2.1])).findings()
    assert "|diff| 0.1 where 0.00022 is allowed" in finding.message
    (finding,) = compared(np.array([1.0, 2.0]), np.array([1.0, 2.5]), "int8").findings()
    assert "SQNR 13.01 dB, at least 20 dB" in finding.message


def test_given_limits_replace_the_row():
    fp32 = TOLERANCES["fp32"]
    assert fp32.override(None, None, None) is fp32
    assert fp32.override(1e-2, None, None).describe() == "|diff| <= 0.01 * |ref| + 1e-05 * max|ref|"
    assert fp32.override(None, 0.5, None).describe() == "|diff| <= 0.0001 * |ref| + 0.5"
    assert fp32.override(None, None, 25).describe() == "SQNR >= 25 dB"
    both = TOLERANCES["int8"].override(None, 0.5, 25)
    assert both.describe() == "|diff| <= 0 * |ref| + 0.5 and SQNR >= 25 dB"
    assert compared([1.0, 2.0], [1.0, 2.1], fp32.override(None, 0.2, None)).passed
    assert not compared([1.0, 2.0], [1.0, 2.1], fp32.override(None, 0.05, None)).passed


@pytest.mark.parametrize(
    ("reference", "candidate", "row"),
    [
        ("fp32", "fp32", "fp32"),
        ("fp32", "fp16", "fp16"),
        ("fp16", "fp32", "fp16"),
        ("bf16", "fp16", "bf16"),
        ("fp32", "int8", "int8"),
        ("fp16", "int8", "int8"),
        ("int8", "int8", "int8-parent"),
        ("int8-dynamic", "int8-dynamic", "int8-parent"),
        ("int8-weights", "int8-weights", "fp32"),
        ("fp32", "int4-weights", "int4-weights"),
        ("int8", "fp32", "int8"),
        ("fp32", "mixed", "mixed"),
        ("fp64", "fp32", "fp32"),
    ],
)
def test_row_follows_from_both_precisions(reference, candidate, row):
    assert row_for(reference, candidate) == row
