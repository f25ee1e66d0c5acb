"""Profiles from `--profile` and from `--dim` bounds."""

from __future__ import annotations

import pytest

from deploykit.artifact import TensorSpec
from deploykit.converters.profiles import describe, hull, parse_profile, parse_profiles, resolve_profiles
from deploykit.converters.tensorrt.symbols import contradicted
from deploykit.errors import UsageError

IMAGE = TensorSpec("x", "float32", ("batch", 3, 8, 8))
TOKENS = TensorSpec("ids", "int64", ("batch", "sequence"))


def test_a_profile_is_three_shapes():
    name, profile = parse_profile("x=1x3x8x8:8x3x8x8:64x3x8x8")
    assert (name, profile) == ("x", [[1, 3, 8, 8], [8, 3, 8, 8], [64, 3, 8, 8]])
    assert describe(profile) == "1x3x8x8:8x3x8x8:64x3x8x8"


def test_a_name_may_hold_an_equals_sign():
    assert parse_profile("a=b=1:2:3") == ("a=b", [[1], [2], [3]])


def test_files_give_lists_of_strings_or_of_numbers():
    assert parse_profiles({"x": ["1x3", "2x3", "4x3"]}) == parse_profiles({"x": [[1, 3], [2, 3], [4, 3]]})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("1x3:2x3:4x3", "is not INPUT=MIN:OPT:MAX"),
        ("x=1x3:4x3", "has 2 shape"),
        ("x=1x3:2y3:4x3", "is not a shape"),
        ("x=1x3:2x3x1:4x3", "differ in rank"),
        ("x=4x3:2x3:8x3", "not MIN <= OPT <= MAX"),
    ],
)
def test_a_wrong_profile_is_refused_with_its_reason(text, problem):
    with pytest.raises(UsageError, match=problem) as caught:
        parse_profile(text)
    assert caught.value.code == "DK521"


def test_bounds_give_min_opt_and_max():
    shapes, findings = resolve_profiles([IMAGE], {"batch": [1, 64]}, {}, target="t")
    assert shapes == {"x": [[1, 3, 8, 8], [8, 3, 8, 8], [64, 3, 8, 8]]}
    assert findings == []


def test_every_missing_bound_is_named_with_the_option_to_add():
    shapes, findings = resolve_profiles([IMAGE, TOKENS], {"batch": [2, None]}, {}, target="t")
    assert shapes == {}
    assert [(f.code, f.severity, f.tensor) for f in findings] == [
        ("DK520", "error", "x"),
        ("DK520", "error", "ids"),
    ]
    assert findings[0].hint.startswith("--dim batch=2..64")
    assert findings[1].hint.startswith("--dim batch=2..64 --dim sequence=1..64 (")


def test_a_given_profile_wins_and_must_fit():
    given = {"x": [[1, 3, 8, 8], [2, 3, 8, 8], [4, 3, 8, 8]]}
    assert resolve_profiles([IMAGE], {"batch": [1, 64]}, given, target="t") == (given, [])
    _, (finding,) = resolve_profiles([IMAGE], {}, {"x": [[1, 3, 8, 9]] * 3}, target="t")
    assert "does not fit input 'x', which is float32 [batch, 3, 8, 8]" in finding.message


def test_a_profile_of_an_unknown_input_is_an_error():
    _, findings = resolve_profiles([IMAGE], {"batch": [1, 4]}, {"y": [[1]] * 3}, target="t")
    assert [f.code for f in findings] == ["DK521"]
    assert findings[0].hint == "inputs: x"


def test_fixed_inputs_need_no_profile():
    assert resolve_profiles([TensorSpec("x", "float32", (1, 3))], {}, {}, target="t") == ({}, [])


def test_bounds_of_a_dimension_that_is_not_there_are_a_warning():
    _, findings = resolve_profiles([IMAGE], {"batch": [1, 4], "bach": [1, 2]}, {}, target="t")
    assert [(f.code, f.severity) for f in findings] == [("DK204", "warning")]
    assert findings[0].hint == "did you mean 'batch'?"


def test_an_input_that_is_named_again_is_in_the_next_profile():
    found = parse_profiles(["x=1x2:2x2:4x2", "y=1:2:4", "x=5x2:6x2:8x2"])
    assert found == [
        {"x": [[1, 2], [2, 2], [4, 2]], "y": [[1], [2], [4]]},
        {"x": [[5, 2], [6, 2], [8, 2]], "y": [[1], [2], [4]]},
    ]
    assert parse_profiles({"x": [["1x2", "2x2", "4x2"], [[5, 2], [6, 2], [8, 2]]]}) == [
        {"x": found[0]["x"]},
        {"x": found[1]["x"]},
    ]
    assert parse_profiles({"x": [[1, 2], [2, 2], [4, 2]]}) == [{"x": found[0]["x"]}]
    assert hull(found) == {"x": [[1, 2], [2, 2], [8, 2]], "y": [[1], [2], [4]]}
    with pytest.raises(UsageError, match="has 2 profiles where another one has 3"):
        parse_profiles(["x=1:1:1", "x=2:2:2", "x=3:3:3", "y=1:1:1", "y=2:2:2"])
    with pytest.raises(UsageError, match="more than the 16"):
        parse_profiles([f"x={n}:{n}:{n}" for n in range(1, 18)])


def test_one_name_for_two_sizes_is_found():
    spec = TensorSpec("x", "float32", ("n", 3, "?", "?"))
    assert contradicted([spec], [{"x": [[1, 3, 4, 4], [1, 3, 4, 8], [2, 3, 8, 8]]}]) == {"?"}
    assert contradicted([spec], [{"x": [[1, 3, 4, 4], [1, 3, 8, 8], [2, 3, 8, 8]]}]) == set()
