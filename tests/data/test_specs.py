from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploykit.artifact import TensorSpec
from deploykit.data.specs import DTYPES, DimRange, format_input, parse_dim, parse_fixed_dim, parse_input, parse_range
from deploykit.errors import UsageError

names = st.from_regex(r"[A-Za-z_][\w./:-]*", fullmatch=True)
dims = st.one_of(st.integers(0, 10**9), st.from_regex(r"[A-Za-z_][\w.]*", fullmatch=True))


def test_numbers_are_fixed_and_names_symbolic() -> None:
    assert parse_input("x:float32[batch,3,224,224]") == TensorSpec("x", "float32", ("batch", 3, 224, 224))


def test_empty_brackets_are_a_scalar() -> None:
    assert parse_input("sr:int64[]").shape == ()


def test_a_name_may_hold_colons_and_spaces_around_are_nothing() -> None:
    assert parse_input(" serving_default_x:0 : float32 [ n , 4 ] ") == TensorSpec(
        "serving_default_x:0", "float32", ("n", 4)
    )


@given(names, st.sampled_from(DTYPES), st.lists(dims, max_size=6))
def test_every_spec_survives_writing_and_reading(name: str, dtype: str, shape: list[int | str]) -> None:
    spec = TensorSpec(name, dtype, tuple(shape))
    assert parse_input(format_input(spec)) == spec


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x", "NAME:DTYPE"),
        ("x:float32", "NAME:DTYPE"),
        ("x:float32[1,2", "NAME:DTYPE"),
        ("x:flaot32[1]", "'flaot32'"),
        ("x:float[1]", "'float'"),
        ("x:float32[-1,3]", "'-1'"),
        ("x:float32[?,3]", "'?'"),
        ("x:float32[1,,3]", "''"),
    ],
)
def test_a_wrong_input_names_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_input(text)
    assert caught.value.code == "DK340"
    assert said in caught.value.message
    assert caught.value.hint


def test_the_nearest_dtype_is_suggested() -> None:
    with pytest.raises(UsageError, match="flaot32") as caught:
        parse_input("x:flaot32[1]")
    assert "float32" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("batch=1..64", DimRange("batch", 1, 64)),
        ("batch=1..", DimRange("batch", 1, None)),
        ("batch=4", DimRange("batch", 4, 4)),
        (" n = 2..2 ", DimRange("n", 2, 2)),
    ],
)
def test_ranges(text: str, expected: DimRange) -> None:
    assert parse_dim(text) == expected


@given(names.filter(lambda name: "=" not in name), st.integers(0, 10**6), st.none() | st.integers(0, 10**6))
def test_every_range_survives_writing_and_reading(name: str, low: int, more: int | None) -> None:
    found = DimRange(name, low, None if more is None else low + more)
    assert parse_dim(found.describe()) == found


def test_a_configuration_gives_a_number_or_a_range() -> None:
    assert parse_range("n", 4) == DimRange("n", 4, 4)
    assert parse_range("n", "1..8") == DimRange("n", 1, 8)


@pytest.mark.parametrize("text", ["batch", "batch=", "=4", "batch=a", "batch=..4", "batch=4..2", "batch=-1..2"])
def test_a_wrong_range_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_dim(text)
    assert caught.value.code == "DK341"
    assert "--dim" in caught.value.hint


def test_a_fixed_dimension_is_one_value() -> None:
    assert parse_fixed_dim("batch=4") == ("batch", 4)
    with pytest.raises(UsageError, match="fix one value"):
        parse_fixed_dim("batch=1..4")


def test_importing_specs_needs_the_standard_library_only() -> None:
    code = "import sys, deploykit.data.specs; print({m.partition('.')[0] for m in sys.modules} & {'numpy', 'pydantic'})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_set_of_sizes() -> None:
    assert parse_dim("batch=1,8") == DimRange("batch", 1, 8, (1, 8))
    assert parse_dim("n=8, 1 ,8") == DimRange("n", 1, 8, (8, 1))
    assert parse_dim("n=4,4") == DimRange("n", 4, 4)
    assert parse_range("n", "16,32").describe() == "n=16,32"
    for text in ("n=1,", "n=,1", "n=1,2..3", "n=1,x"):
        with pytest.raises(UsageError, match="is not NAME=MIN"):
            parse_dim(text)
    with pytest.raises(UsageError, match="must fix one value"):
        parse_fixed_dim("n=1,8")
