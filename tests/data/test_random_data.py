from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploykit.artifact import TensorSpec
from deploykit.data import DimRange, open_data
from deploykit.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable

    from deploykit.data import Dataset


def test_parity_and_bench_fall_back_to_random_and_say_so_first(opened: Callable[..., Dataset]) -> None:
    for purpose in ("parity", "bench"):
        data = opened(None, "x:float32[n,4]", purpose=purpose)
        assert data.findings[0].code == "DK320"
        assert data.description == "random:0"
        assert len(list(data)) == data.total == 16


@pytest.mark.parametrize("purpose", ["calibration", "accuracy"])
def test_calibration_and_accuracy_never_fall_back(opened: Callable[..., Dataset], purpose: str) -> None:
    with pytest.raises(DataError, match="needs data") as caught:
        opened(None, "x:float32[n,4]", purpose=purpose)
    assert caught.value.code == "DK304"


def test_random_calibration_is_taken_when_asked_for(opened: Callable[..., Dataset]) -> None:
    assert len(list(opened("random:3", "x:float32[n,4]", purpose="calibration", samples=5))) == 5


def test_random_data_has_no_labels(opened: Callable[..., Dataset]) -> None:
    with pytest.raises(DataError, match="no labels"):
        opened("random", "x:float32[n,4]", purpose="accuracy")


def test_the_same_seed_gives_the_same_bytes(opened: Callable[..., Dataset]) -> None:
    def bytes_of(source: str, **options: object) -> list[bytes]:
        return [sample.feeds["x"].tobytes() for sample in opened(source, "x:float32[n,4]", **options)]

    assert bytes_of("random:7") == bytes_of("random:7") == bytes_of("random", seed=7)
    assert bytes_of("random:7") != bytes_of("random:8")
    assert bytes_of("random:7", samples=4) == bytes_of("random:7")[:4]


@given(st.integers(0, 5), st.integers(0, 9), st.integers(2, 20), st.integers(0, 99))
def test_symbols_stay_in_their_range_are_shared_and_reach_its_ends(low: int, more: int, count: int, seed: int) -> None:
    specs = (TensorSpec("a", "float32", ("n", 2)), TensorSpec("b", "float32", (0, "n", "m")))
    dims = {"n": DimRange("n", low, low + more)}
    data = open_data(f"random:{seed}", specs, purpose="parity", samples=count, dims=dims)
    sizes = []
    for sample in data:
        a, b = sample.feeds["a"], sample.feeds["b"]
        assert b.shape[:2] == (0, a.shape[0])
        assert a.shape[1] == 2
        assert 1 <= b.shape[2] <= 8
        sizes.append(a.shape[0])
    assert min(sizes) == low
    assert max(sizes) == low + more
    assert sizes[:2] == [low, low + more]


def test_values_between_the_ends_occur(opened: Callable[..., Dataset]) -> None:
    data = opened("random", "x:float32[n]", dims={"n": DimRange("n", 1, 100)})
    assert len({sample.feeds["x"].shape[0] for sample in data}) > 8


def test_an_open_range_goes_a_little_way(opened: Callable[..., Dataset]) -> None:
    data = opened("random", "x:float32[n]", dims={"n": DimRange("n", 10, None)}, samples=50)
    assert {sample.feeds["x"].shape[0] for sample in data} == set(range(10, 18))


def test_sizes_that_nobody_declared_are_said(opened: Callable[..., Dataset]) -> None:
    declared = {"n": DimRange("n", 1, 4)}
    data = opened("random", "x:float32[n,t,3]", dims=declared)
    assert [finding.message for finding in data.findings] == [
        "random:0: no range is declared for dimension 't': sizes are 1..8"
    ]
    assert opened("random", "x:float32[n,3]", dims=declared).findings == []


def test_every_dtype_is_made(opened: Callable[..., Dataset]) -> None:
    dtypes = ["float16", "float64", "bfloat16", "bool", "int8", "uint64", "complex64", "string"]
    specs = [f"{dtype}:{dtype}[4,5]" for dtype in dtypes]
    for sample in opened("random", *specs):
        for dtype in dtypes:
            array = sample.feeds[dtype]
            assert array.shape == (4, 5)
            assert array.dtype.name == ("object" if dtype == "string" else dtype)


def test_floats_are_standard_normal(opened: Callable[..., Dataset]) -> None:
    (sample,) = opened("random", "x:float32[1000,100]", samples=1)
    assert abs(float(sample.feeds["x"].mean())) < 0.02
    assert abs(float(sample.feeds["x"].std()) - 1) < 0.02


def test_unknown_integers_are_zero_and_one_and_no_row_is_zero(opened: Callable[..., Dataset]) -> None:
    (sample,) = opened("random", "mask:int64[50,7]", samples=1)
    mask = sample.feeds["mask"]
    assert set(np.unique(mask)) == {0, 1}
    assert (mask.sum(axis=1) > 0).all()


def test_an_unknown_rank_is_refused() -> None:
    with pytest.raises(DataError, match="no declared rank"):
        open_data("random", (TensorSpec("x", "float32", None),), purpose="parity")


def test_dimensions_that_are_only_unknown_vary_on_their_own() -> None:
    spec = TensorSpec("x", "float32", ("?", "?"))
    shapes = {sample.feeds["x"].shape for sample in open_data("random", (spec,), purpose="parity")}
    assert any(height != width for height, width in shapes)


@pytest.mark.parametrize("shape", ["1000000,1000000", "9223372036854775807"])
def test_what_no_memory_holds_is_refused(opened: Callable[..., Dataset], shape: str) -> None:
    with pytest.raises(DataError, match="does not fit into memory") as caught:
        list(opened("random", f"x:float32[{shape}]", purpose="parity"))
    assert (caught.value.code, caught.value.tensor) == ("DK334", "x")


def test_a_sum_of_dimensions_is_the_sum_of_their_sizes() -> None:
    specs = (
        TensorSpec("mask", "int64", ("past + new",)),
        TensorSpec("ids", "int64", ("new",)),
        TensorSpec("cache", "float32", ("past", 2)),
    )
    data = open_data("random:0", specs, purpose="parity")
    shapes = [{name: array.shape[0] for name, array in sample.feeds.items()} for sample in data]
    assert all(sizes["mask"] == sizes["ids"] + sizes["cache"] for sizes in shapes)
    assert len({sizes["mask"] for sizes in shapes}) > 2
    assert "'new', 'past'" in data.findings[0].message


def test_every_combination_of_sets_comes_in_turn_the_smallest_and_the_largest_first(
    opened: Callable[..., Dataset],
) -> None:
    dims = {"n": DimRange.of_sizes("n", (8, 1, 4)), "m": DimRange.of_sizes("m", (2, 5)), "k": DimRange("k", 1, 9)}
    data = opened("random", "x:float32[n,m]", "z:float32[k,n]", dims=dims, samples=12)
    shapes = [(*sample.feeds["x"].shape, sample.feeds["z"].shape[1]) for sample in data]
    assert shapes[0] == (1, 2, 1)
    assert shapes[1] == (8, 5, 8)
    assert set(shapes[:6]) == {(n, m, n) for n in (1, 4, 8) for m in (2, 5)}
    assert shapes[6:] == shapes[:6]
