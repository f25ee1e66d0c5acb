"""What a library says of itself, in JSON behind its last byte: loaders never look there, and reading runs nothing."""

from __future__ import annotations

import json
import math
import os
from typing import TYPE_CHECKING, Any

from deploykit.artifact import TensorSpec
from deploykit.errors import InvalidFileError

if TYPE_CHECKING:
    from pathlib import Path

_MARK = b"deploykit.tvm/1\n"
_LENGTH = 8
_MOST = 64 << 20
_ELF64 = b"\x7fELF\x02\x01"  # of 64 bits, little-endian
_KINDS = {b"\x7fELF": "ELF", b"\xcf\xfa\xed\xfe": "Mach-O"}


def add(path: Path, facts: dict[str, Any]) -> None:
    """Appends the facts: JSON, its length as eight bytes, little-endian, and the mark."""
    text = json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()
    with path.open("ab") as stream:
        stream.write(text + len(text).to_bytes(_LENGTH, "little") + _MARK)


def kind_of(path: Path) -> str:
    """The library's format. Raises InvalidFileError (DK528) for what is none, or is cut off."""
    with path.open("rb") as stream:
        header = stream.read(64)
        size = stream.seek(0, os.SEEK_END)
    start = header[:4]
    if start not in _KINDS:
        raise InvalidFileError(
            f"{path.name} is no shared library: it begins with {start!r}",
            code="DK528",
            file=path,
            target="tvm",
            hint="deploykit convert MODEL.onnx --to tvm -o OUT.so makes one",
        )
    if header[:6] == _ELF64 and _sections_end(header) > size:
        raise _damaged(path, "it is cut off")
    return _KINDS[start]


def _sections_end(header: bytes) -> int:
    """Where the table of sections ends, the last thing that linkers write (ELF-64: e_shoff, e_shentsize, e_shnum)."""
    if len(header) < 64:
        return 64
    return int.from_bytes(header[40:48], "little") + math.prod(
        int.from_bytes(header[at : at + 2], "little") for at in (58, 60)
    )


def read(path: Path) -> dict[str, Any] | None:
    """The facts; None in a library that was made elsewhere. Raises InvalidFileError (DK528) for a damaged file."""
    kind_of(path)
    end = _LENGTH + len(_MARK)
    with path.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        if size < end:
            return None
        stream.seek(size - end)
        tail = stream.read(end)
        if not tail.endswith(_MARK):
            return None
        length = int.from_bytes(tail[:_LENGTH], "little")
        if length > min(size - end, _MOST):
            raise _damaged(path)
        stream.seek(size - end - length)
        text = stream.read(length)
    try:
        facts = json.loads(text)
        _fits(facts)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise _damaged(path) from problem
    found: dict[str, Any] = facts
    return found


def _fits(facts: dict[str, Any]) -> None:
    """Raises KeyError, TypeError or AttributeError for facts that no reader of them could use."""
    for kind in ("inputs", "outputs"):
        for spec in facts[kind]:
            TensorSpec.from_dict(spec)
    if not isinstance(facts["precision"], str) or not isinstance(facts["version"], str):
        raise TypeError("precision and version are words")
    facts["built_for"].items()
    sum(facts["functions"].values())


def _damaged(path: Path, why: str = "what it says of itself cannot be read") -> InvalidFileError:
    return InvalidFileError(
        f"{path.name} is damaged: {why}",
        code="DK528",
        file=path,
        target="tvm",
        hint="convert the model again",
    )
