"""Tensors in the Open Inference Protocol, as a client sends and receives them: binary where it can be, else JSON.

Source: github.com/kserve/open-inference-protocol, inference_rest.md ("Tensor Data Types", "Tensor Data"); Triton's
extension_binary_data.md: little-endian row-major values, BYTES as a 32-bit length before each element.
"""

from __future__ import annotations

import json
import struct
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.data.dtypes import numpy_dtype
from deploykit.errors import DeploykitError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from deploykit.artifact import TensorSpec

    Array = np.ndarray[Any, Any]

DTYPES: dict[str, str] = {
    "BOOL": "bool",
    **{f"{sign.upper()}INT{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "BF16": "bfloat16",
    "BYTES": "string",
}
_DATATYPES = {dtype: datatype for datatype, dtype in DTYPES.items()}
_LENGTH = struct.Struct("<I")


def datatype_of(array: Array) -> str:
    """The protocol's name of an array's dtype. Raises DeploykitError (DK419) for one that it does not have."""
    if array.dtype.kind in "OUS":
        return "BYTES"
    try:
        return _DATATYPES[array.dtype.name]
    except KeyError:
        text = f"the protocol has no datatype for {array.dtype.name}"
        raise DeploykitError(text, code="DK419") from None


def request(feeds: Mapping[str, Array], outputs: Iterable[TensorSpec], *, binary: bool) -> tuple[bytes, int | None]:
    """The body of an inference request, and how long its JSON is where binary data follow it."""
    inputs, blobs = [], []
    for name, array in feeds.items():
        tensor: dict[str, Any] = {"name": name, "datatype": datatype_of(array), "shape": list(array.shape)}
        if binary:
            blobs.append(_to_bytes(array))
            tensor["parameters"] = {"binary_data_size": len(blobs[-1])}
        else:
            tensor["data"] = _listed(array)
        inputs.append(tensor)
    document: dict[str, Any] = {"inputs": inputs}
    if binary:
        document["outputs"] = [{"name": spec.name, "parameters": {"binary_data": True}} for spec in outputs]
    head = json.dumps(document, separators=(",", ":")).encode()
    return (b"".join([head, *blobs]), len(head)) if binary else (head, None)


def response(raw: bytes, header_length: int | None) -> dict[str, Array]:
    """The outputs in an answer. Raises DeploykitError (DK419) when it is not what the protocol says."""
    try:
        document = json.loads(raw[:header_length])
        at, found = header_length or len(raw), {}
        for tensor in document["outputs"]:
            datatype, shape = tensor["datatype"], [int(size) for size in tensor["shape"]]
            size = (tensor.get("parameters") or {}).get("binary_data_size")
            if size is None:
                found[tensor["name"]] = _from_list(tensor["data"], datatype).reshape(shape)
                continue
            found[tensor["name"]] = _from_bytes(raw[at : at + size], datatype).reshape(shape)
            at += size
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as problem:
        text = f"the server's answer is not the protocol's: {type(problem).__name__}: {str(problem)[:200]}"
        raise DeploykitError(text, code="DK419") from problem
    return found


def _to_bytes(array: Array) -> bytes:
    if array.dtype.kind in "OUS":
        items = [item if isinstance(item, bytes) else str(item).encode() for item in array.ravel().tolist()]
        return b"".join(part for item in items for part in (_LENGTH.pack(len(item)), item))
    return _little(np.ascontiguousarray(array)).tobytes()


def _from_bytes(raw: bytes, datatype: str) -> Array:
    if datatype != "BYTES":
        return _little(np.frombuffer(raw, numpy_dtype(DTYPES[datatype])))
    items, at = [], 0
    while at < len(raw):
        (length,) = _LENGTH.unpack_from(raw, at)
        items.append(raw[at + _LENGTH.size : at + _LENGTH.size + length].decode("utf-8"))
        at += _LENGTH.size + length
    found: Array = np.array(items, object)
    return found


def _listed(array: Array) -> list[Any]:
    if array.dtype.kind in "OUS":
        return [item.decode("utf-8", "replace") if isinstance(item, bytes) else str(item) for item in array.ravel()]
    flat: list[Any] = (array.astype(np.float32) if array.dtype.kind == "V" else array).ravel().tolist()
    return flat


def _from_list(data: Any, datatype: str) -> Array:
    found: Array
    if datatype == "BYTES":
        found = np.array(data, object).ravel()
    else:  # null is what JSON has for NaN and infinities
        wide = np.array(data, np.float64 if datatype.startswith(("FP", "BF")) else None)
        found = wide.astype(numpy_dtype(DTYPES[datatype])).ravel()
    return found


def _little(array: Array) -> Array:
    return array if sys.byteorder == "little" else array.byteswap()
