from __future__ import annotations

import json
import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from deploykit.serving.datatypes import (
    DATATYPES,
    DTYPES,
    array_from_bytes,
    array_from_json,
    bytes_from_array,
    datatype_of,
    json_from_array,
    shape_of_json,
)
from deploykit.serving.errors import RequestError, UnfitInputError, UnreadableRequestError

BF16 = np.dtype(ml_dtypes.bfloat16)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


@st.composite
def tensors(draw: st.DrawFn, datatype: str, finite: bool) -> np.ndarray:
    shape = draw(SHAPES)
    if datatype == "BYTES":
        texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
        return draw(hnp.arrays(object, shape, elements=texts, fill=st.nothing()))
    if datatype == "BF16":
        bits = draw(hnp.arrays(np.uint16, shape)).view(BF16)
        with np.errstate(invalid="ignore"):
            return np.where(np.isfinite(bits), bits, BF16.type(1)).astype(BF16) if finite else bits
    dtype = np.dtype(DTYPES[datatype])
    if dtype.kind == "f":
        return draw(hnp.arrays(dtype, shape, elements={"allow_nan": not finite, "allow_infinity": not finite}))
    return draw(hnp.arrays(dtype, shape))


def same(left: np.ndarray, right: np.ndarray) -> bool:
    if left.dtype == object:
        return left.shape == right.shape and left.tolist() == right.tolist()
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


def test_every_datatype_of_the_protocol_has_a_numpy_dtype() -> None:
    protocol = "BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64 BYTES BF16"
    assert set(DATATYPES.values()) == set(protocol.split())


@pytest.mark.parametrize("datatype", DTYPES)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_binary_data_round_trips_bit_for_bit(datatype: str, data: st.DataObject) -> None:
    array = data.draw(tensors(datatype, finite=False))
    raw = bytes(bytes_from_array(array))
    # The JSON before it has any length, so the data may begin at any address.
    shifted = memoryview(b"x" * data.draw(st.integers(0, 7)) + raw)
    back = array_from_bytes(shifted[len(shifted) - len(raw) :], datatype, array.shape, "t")
    assert same(back, array)
    assert back.flags.aligned
    assert datatype_of(back) == datatype


@pytest.mark.parametrize("datatype", DTYPES)
@pytest.mark.parametrize("nested", [True, False])
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_json_round_trips_bit_for_bit(datatype: str, nested: bool, data: st.DataObject) -> None:
    array = data.draw(tensors(datatype, finite=True))
    listed, holes = json_from_array(array, nested=nested)
    text = json.dumps(listed, allow_nan=False)
    assert holes == 0
    assert same(array_from_json(json.loads(text), datatype, array.shape, "t"), array)


def test_binary_data_is_little_endian_as_the_struct_module_packs_it() -> None:
    assert bytes(bytes_from_array(np.array([1, -2], np.int32))) == struct.pack("<2i", 1, -2)
    assert bytes(bytes_from_array(np.array([1.5], np.float16))) == struct.pack("<e", 1.5)
    assert bytes(bytes_from_array(np.array(["né", ""], object))) == struct.pack("<I", 3) + "né".encode() + bytes(4)


def test_bools_are_zero_or_anything_else() -> None:
    array = array_from_bytes(memoryview(bytes([0, 1, 7])), "BOOL", [3], "t")
    assert array.tolist() == [False, True, True]
    assert array.tobytes() == bytes([0, 1, 1])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, BF16])
def test_nan_and_infinities_become_null_and_are_counted(dtype: np.dtype) -> None:
    array = np.array([[1, np.nan], [np.inf, -np.inf]], np.float32).astype(dtype)
    assert json_from_array(array) == ([1.0, None, None, None], 3)
    assert json_from_array(array, nested=True) == ([[1.0, None], [None, None]], 3)


REFUSED_JSON = {
    "too few": ([1, 2], "FP32", [3], "2 elements"),
    "too many": ([1, 2], "FP32", [1], "2 elements"),
    "ragged": ([[1, 2], [3]], "FP32", [2, 2], "1 or 2 elements along axis 1"),
    "side by side": ([[1, 2], 3], "FP32", [2, 2], "ragged"),
    "too deep": ([[[1]]], "FP32", [1, 1], "deeper"),
    "transposed": ([[1, 2, 3], [4, 5, 6]], "FP32", [3, 2], "along axis 0"),
    "a bare value": (1, "FP32", [1], "a list is needed"),
    "an object": ({"0": 1}, "FP32", [1], "an object"),
    "a float for an integer": ([1, 1.5], "INT32", [2], "element 1 is 1.5"),
    "a string for a number": (["1.5"], "FP32", [1], "the string '1.5'"),
    "a bool for a number": ([True], "FP32", [1], "element 0 is true"),
    "a bool among integers": ([1, False], "INT8", [2], "element 1 is false"),
    "null": ([None], "FP32", [1], "null"),
    "a number for text": ([1], "BYTES", [1], "takes strings"),
    "two for a bool": ([2], "BOOL", [1], "true and false"),
    "beyond int8": ([1, 128], "INT8", [2], "128 does not fit INT8"),
    "below zero": ([-1], "UINT64", [1], "-1 does not fit"),
    "beyond float16": ([65536], "FP16", [1], "does not fit FP16"),
    "beyond float32": ([0, 1e39], "FP32", [2], "1e+39"),
    "beyond double": ([1e999], "FP64", [1], "does not fit"),
    "an integer beyond double": ([10**400], "FP64", [1], "does not fit"),
    "a long integer": ([10**400], "INT64", [1], "an integer of 1329 bits"),
}


@pytest.mark.parametrize("case", REFUSED_JSON)
def test_json_that_does_not_fit_is_refused_with_the_reason(case: str) -> None:
    data, datatype, shape, reason = REFUSED_JSON[case]
    with pytest.raises(RequestError) as caught:
        array_from_json(data, datatype, shape, "input 'x'")
    assert reason in caught.value.message
    assert caught.value.message.startswith("input 'x'")


def test_null_points_to_binary_data() -> None:
    with pytest.raises(UnfitInputError) as caught:
        array_from_json([None], "FP32", [1], "t")
    assert "binary" in caught.value.hint


def test_zero_and_one_are_bools() -> None:
    assert array_from_json([0, 1, True], "BOOL", [3], "t").tolist() == [False, True, True]


def test_a_scalar_is_a_bare_value_or_a_list_of_one() -> None:
    assert array_from_json(3, "INT64", [], "t").shape == ()
    assert array_from_json([3], "INT64", [], "t") == 3


REFUSED_BYTES = {
    "too short": (b"\0" * 7, "FP32", [2]),
    "too long": (b"\0" * 9, "FP32", [2]),
    "a length alone": (b"\1\0\0\0", "BYTES", [1]),
    "a length beyond the end": (b"\xff\xff\xff\xffab", "BYTES", [1]),
    "half a length": (b"\0\0\0\0\0\0", "BYTES", [2]),
    "text after the last": (b"\0\0\0\0a", "BYTES", [1]),
    "more elements than bytes": (b"\0\0\0\0", "BYTES", [2**40]),
}


@pytest.mark.parametrize("case", REFUSED_BYTES)
def test_binary_data_that_does_not_fit_is_refused(case: str) -> None:
    raw, datatype, shape = REFUSED_BYTES[case]
    with pytest.raises(UnreadableRequestError):
        array_from_bytes(memoryview(raw), datatype, shape, "t")


def test_text_that_is_no_utf8_is_refused() -> None:
    with pytest.raises(UnfitInputError, match="UTF-8"):
        array_from_bytes(memoryview(b"\1\0\0\0\xff"), "BYTES", [1], "t")


@pytest.mark.parametrize(
    ("data", "shape"), [(1, ()), ([], (0,)), ([[1, 2]], (1, 2)), ([[[]]], (1, 1, 0)), ("text", ()), (["a"], (1,))]
)
def test_the_shape_of_nested_lists(data: object, shape: tuple[int, ...]) -> None:
    assert shape_of_json(data) == shape
