"""A look at the wire format before the parser: small files that would unpack to gigabytes are refused first.

Each entry of a graph takes hundreds of bytes as a message and may take two in the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_MODEL_GRAPH = 7  # ModelProto.graph; GraphProto holds nodes, initializers and value infos as its own fields
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def graph_entries(content: memoryview, limit: int) -> int:
    """Number of nodes, initializers and value infos of the main graph; counting ends just above `limit`.

    Damaged content is not judged here: what can be walked is counted, and the parser says what is wrong.
    """
    count = 0
    for field, start, end in _fields(content, 0, len(content)):
        if field == _MODEL_GRAPH:
            for _ in _fields(content, start, end):
                count += 1
                if count > limit:
                    return count
    return count


def _fields(content: memoryview, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """(field number, start, end of the value) for each field of a message, as far as they are sound."""
    while at < end:
        tag, at = _varint(content, at, end)
        kind = tag & 7
        if kind == _BYTES:
            size, at = _varint(content, at, end)
        elif kind == _VARINT:
            _, after = _varint(content, at, end)
            size = after - at
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            return
        if at + size > end:
            return
        yield tag >> 3, at, at + size
        at += size


def _varint(content: memoryview, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = content[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    return 0, end
