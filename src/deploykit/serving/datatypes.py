"""The protocol's datatypes: their names, and tensors as bytes and as JSON lists.

Formats: Open Inference Protocol (KServe v2), "Tensor Data Types" and "Tensor Data"; the binary tensor data extension:
little-endian row-major values, BYTES as a 32-bit length before each element, BOOL one byte each.
"""

from __future__ import annotations

import itertools
import math
import struct
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.data.dtypes import numpy_dtype
from deploykit.serving.errors import UnfitInputError, UnreadableRequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    Array = np.ndarray[Any, Any]

DATATYPES: dict[str, str] = {
    "bool": "BOOL",
    **{f"{sign}int{bits}": f"{sign.upper()}INT{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"FP{bits}" for bits in (16, 32, 64)},
    "bfloat16": "BF16",
    "string": "BYTES",
}
DTYPES: dict[str, str] = {datatype: dtype for dtype, datatype in DATATYPES.items()}
_FLOATS = {"FP16", "FP32", "FP64", "BF16"}
_LENGTH = struct.Struct("<I")
# By dtype: numpy makes a dtype's name anew each time that it is asked for.
_KNOWN: dict[Any, str] = {}


def datatype_of(array: Array) -> str:
    """The protocol's name for an array's dtype; objects and numpy strings are BYTES."""
    if array.dtype.kind in "OUS":
        return "BYTES"
    known = _KNOWN.get(array.dtype)
    if known is None:
        known = _KNOWN[array.dtype] = DATATYPES[array.dtype.name]
    return known


def element_count(shape: Sequence[int]) -> int:
    """Elements of a tensor of this shape; 1 for a scalar."""
    return math.prod(shape)


def array_from_bytes(raw: memoryview, datatype: str, shape: Sequence[int], where: str) -> Array:
    """The tensor that binary data holds, without a copy where the machine's byte order allows.

    where: the tensor's place, for messages ("input 'x'"). Raises UnreadableRequestError when the size does not fit the
    shape.
    """
    count = element_count(shape)
    if datatype == "BYTES":
        return _strings_from_bytes(raw, count, where).reshape(shape)
    dtype = numpy_dtype(DTYPES[datatype])
    if len(raw) != count * dtype.itemsize:
        raise UnreadableRequestError(
            f"{where} has {len(raw)} bytes of binary data; {datatype} {list(shape)} takes {count * dtype.itemsize}"
        )
    if datatype == "BOOL":
        # Other bytes than 0 and 1 are undefined behaviour in a numpy bool.
        return np.asarray(np.frombuffer(raw, np.uint8) != 0).reshape(shape)
    array: Array = np.frombuffer(raw, dtype)
    if not array.flags.aligned:  # the JSON before it has any length, and engines take the pointer as it is
        array = array.copy()
    return (array if sys.byteorder == "little" else array.byteswap()).reshape(shape)


def _strings_from_bytes(raw: memoryview, count: int, where: str) -> Array:
    # Each element takes at least its length, so this bounds what is allocated before anything is read.
    if count * _LENGTH.size > len(raw):
        raise UnreadableRequestError(f"{where} has {len(raw)} bytes of binary data, too few for {count} BYTES elements")
    array = np.empty(count, object)
    position = 0
    for index in range(count):
        start = position + _LENGTH.size
        end = start + _LENGTH.unpack_from(raw, position)[0] if start <= len(raw) else len(raw) + 1
        if end > len(raw):
            raise UnreadableRequestError(f"{where}: BYTES element {index} of {count} goes beyond the binary data")
        array[index] = _text(bytes(raw[start:end]), f"{where}: BYTES element {index}")
        position = end
    if position != len(raw):
        raise UnreadableRequestError(f"{where}: {len(raw) - position} bytes follow the last of {count} BYTES elements")
    return array


def _text(raw: bytes, where: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise UnfitInputError(f"{where} is not UTF-8, and the model takes text") from problem


def bytes_from_array(array: Array) -> bytes | memoryview:
    """The tensor as binary data; a view of the array where that is what it already is."""
    if array.dtype.kind in "OUS":
        elements = [item if isinstance(item, bytes) else str(item).encode() for item in array.ravel().tolist()]
        return b"".join(part for item in elements for part in (_LENGTH.pack(len(item)), item))
    ordered = np.ascontiguousarray(array)
    if sys.byteorder != "little":
        ordered = ordered.byteswap()
    return ordered.reshape(-1).view(np.uint8).data


def array_from_json(data: Any, datatype: str, shape: Sequence[int], where: str) -> Array:
    """The tensor that a JSON list holds, flat in row-major order or nested as the shape says.

    Nothing is converted silently: a float for an integer, a string for a number, a value beyond the datatype's range
    and null are refused (UnfitInputError); a wrong element count or ragged nesting is an UnreadableRequestError.
    """
    flat = _flat(data, shape, where)
    _check_kinds(flat, datatype, where)
    if datatype == "BYTES":
        strings = np.empty(len(flat), object)
        strings[:] = flat
        return strings.reshape(shape)
    dtype = numpy_dtype(DTYPES[datatype])
    if dtype.kind in "iu" and flat:
        limits = np.iinfo(dtype)
        for value in (min(flat), max(flat)):
            if not limits.min <= value <= limits.max:
                raise UnfitInputError(f"{where}: {_short(value)} does not fit {datatype}")
    if datatype not in _FLOATS:
        return np.array(flat, dtype).reshape(shape)
    try:
        # By way of doubles: ml_dtypes does not take Python integers beyond 64 bits.
        wide = np.array(flat, np.float64)
    except OverflowError as problem:
        raise UnfitInputError(f"{where}: a value does not fit {datatype}") from problem
    with np.errstate(over="ignore"):
        array = wide.astype(dtype)
    # JSON has no infinity, so one means that a number was too large.
    if not np.isfinite(array).all():
        bad = flat[int(np.argmin(np.isfinite(array)))]
        raise UnfitInputError(f"{where}: {_short(bad)} does not fit {datatype}")
    return array.reshape(shape)


def shape_of_json(data: Any) -> tuple[int, ...]:
    """The shape that the nesting of a JSON value shows, by its first elements; () for a bare value."""
    shape = []
    while isinstance(data, list):
        shape.append(len(data))
        if not data:
            break
        data = data[0]
    return tuple(shape)


def _flat(data: Any, shape: Sequence[int], where: str) -> list[Any]:
    if not isinstance(data, list):
        if len(shape) == 0:
            return [data]
        raise UnreadableRequestError(f"{where}: data is {_kind(data)}, and a list is needed")
    if list not in set(map(type, data)):
        if len(data) != element_count(shape):
            raise UnreadableRequestError(
                f"{where}: data has {len(data)} elements, and shape {list(shape)} takes {element_count(shape)}"
            )
        return data
    level: list[Any] = [data]
    for axis, size in enumerate(shape):
        if set(map(type, level)) - {list}:
            raise UnreadableRequestError(f"{where}: data is ragged at axis {axis}: lists and values stand side by side")
        lengths = set(map(len, level))
        if lengths - {size}:
            given = " or ".join(map(str, sorted(lengths)))
            raise UnreadableRequestError(
                f"{where}: data has {given} elements along axis {axis}, and shape {list(shape)} says {size}"
            )
        level = list(itertools.chain.from_iterable(level))
    if list in set(map(type, level)):
        raise UnreadableRequestError(f"{where}: data is nested deeper than shape {list(shape)}")
    return level


def _check_kinds(flat: list[Any], datatype: str, where: str) -> None:
    """Refuses JSON values of another kind than the datatype's."""
    kinds = set(map(type, flat))
    if datatype == "BYTES":
        allowed: set[type] = {str}
    elif datatype == "BOOL":
        allowed = {bool}
        if int in kinds and all(value in (0, 1) for value in flat if type(value) is int):
            allowed = {bool, int}
    else:
        allowed = {int, float} if datatype in _FLOATS else {int}
    if kinds <= allowed:
        return
    index = next(i for i, value in enumerate(flat) if type(value) not in allowed)
    hint = "send NaN and infinities as binary data" if flat[index] is None and datatype in _FLOATS else ""
    raise UnfitInputError(
        f"{where}: element {index} is {_kind(flat[index])}, and {datatype} takes {_takes(datatype)}", hint=hint
    )


def _takes(datatype: str) -> str:
    if datatype in ("BYTES", "BOOL"):
        return {"BYTES": "strings", "BOOL": "true and false"}[datatype]
    return "numbers" if datatype in _FLOATS else "whole numbers"


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", type(None): "null", str: "the string", bool: "", int: "", float: ""}
    word = names.get(type(value), type(value).__name__)
    return f"{word} {_short(value)}".strip() if isinstance(value, (str, bool, int, float)) else word


def _short(value: Any) -> str:
    """The value as JSON shows it, cut; a huge integer is not printed (that alone would take seconds)."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def json_from_array(array: Array, *, nested: bool = False) -> tuple[list[Any], int]:
    """The tensor as a JSON list (flat, or nested as its shape) and how many NaN and infinities became null in it."""
    if array.dtype.kind in "OUS":
        texts = np.array(
            [item.decode("utf-8", "replace") if isinstance(item, bytes) else str(item) for item in array.ravel()],
            object,
        ).reshape(array.shape)
        return _listed(texts, nested=nested), 0
    if array.dtype.kind in "biu":
        return _listed(array, nested=nested), 0
    with np.errstate(invalid="ignore"):  # a signalling NaN is still a NaN
        values = array if array.dtype.kind == "f" else array.astype(np.float32)  # bfloat16 is not numpy's own
        finite = np.isfinite(values)
    if finite.all():
        return _listed(values, nested=nested), 0
    holes = values.astype(object)
    holes[~finite] = None
    return _listed(holes, nested=nested), int(finite.size - np.count_nonzero(finite))


def _listed(array: Array, *, nested: bool) -> list[Any]:
    found: list[Any] = array.tolist() if nested else array.ravel().tolist()
    return found
