"""Tensors between deploykit and JavaScript: a JSON head, and the bytes of the tensors behind it."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.data.dtypes import numpy_dtype

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.artifact import TensorSpec
    from deploykit.runtime import Feeds, Outputs

# What ONNX Runtime Web has tensors of.
DTYPES = frozenset(
    ["float16", "float32", "float64", "bool", "string"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)


def rows_of(feeds: Feeds, inputs: Sequence[TensorSpec]) -> tuple[list[dict[str, Any]], list[bytes]]:
    """What a head says of the inputs, and their bytes one after the other."""
    rows: list[dict[str, Any]] = []
    parts: list[bytes] = []
    offset = 0
    for spec in inputs:
        array = np.asarray(feeds[spec.name])
        row: dict[str, Any] = {"name": spec.name, "dtype": spec.dtype, "shape": list(array.shape)}
        if spec.dtype == "string":
            rows.append({**row, "texts": [str(text) for text in array.reshape(-1)]})
            continue
        data = np.ascontiguousarray(array, numpy_dtype(spec.dtype).newbyteorder("<")).tobytes()
        rows.append({**row, "offset": offset, "size": len(data)})
        parts.append(data)
        offset += len(data)
    return rows, parts


def request(feeds: Feeds, inputs: Sequence[TensorSpec]) -> bytes:
    """A request: lengths of head and body, the head, the body."""
    rows, parts = rows_of(feeds, inputs)
    head, body = json.dumps({"inputs": rows}).encode(), b"".join(parts)
    return b"".join((struct.pack("<II", len(head), len(body)), head, body))


def body_size(head: Mapping[str, Any]) -> int:
    """Bytes behind an answer's head."""
    return sum(row.get("size", 0) for row in head["outputs"])


def outputs_of(head: Mapping[str, Any], body: bytes) -> Outputs:
    """The outputs of an answer, by name."""
    found: Outputs = {}
    offset = 0
    for row in head["outputs"]:
        shape = tuple(row["shape"])
        if row["dtype"] == "string":
            texts = np.empty(len(row["texts"]), dtype=object)
            texts[:] = row["texts"]
            found[row["name"]] = texts.reshape(shape)
            continue
        kind = numpy_dtype(row["dtype"])
        count = row["size"] // kind.itemsize
        found[row["name"]] = np.frombuffer(body, kind.newbyteorder("<"), count, offset).astype(kind).reshape(shape)
        offset += row["size"]
    return found
