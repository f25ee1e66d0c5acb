"""What a library says of itself, in JSON behind its last byte: loaders never look there, and reading runs nothing."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from deploykit.errors import InvalidFileError

if TYPE_CHECKING:
    from pathlib import Path

_MARK = b"deploykit.tvm/1\n"
_LENGTH = 8
_MOST = 64 << 20
_KINDS = {b"\x7fELF": "ELF", b"\xcf\xfa\xed\xfe": "Mach-O"}


def add(path: Path, facts: dict[str, Any]) -> None:
    """Appends the facts: JSON, its length as eight bytes, little-endian, and the mark."""
    text = json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()
    with path.open("ab") as stream:
        stream.write(text + len(text).to_bytes(_LENGTH, "little") + _MARK)


def kind_of(path: Path) -> str:
    """The library's format. Raises InvalidFileError (DK528) for what is none."""
    with path.open("rb") as stream:
        start = stream.read(4)
    if start not in _KINDS:
        raise InvalidFileError(
            f"{path.name} is no shared library: it begins with {start!r}",
            code="DK528",
            file=path,
            target="tvm",
            hint="deploykit convert MODEL.onnx --to tvm -o OUT.so makes one",
        )
    return _KINDS[start]


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
    except ValueError as problem:
        raise _damaged(path) from problem
    if not isinstance(facts, dict) or not {"inputs", "outputs", "precision", "built_for"} <= facts.keys():
        raise _damaged(path)
    return facts


def _damaged(path: Path) -> InvalidFileError:
    return InvalidFileError(
        f"{path.name} is damaged: what it says of itself cannot be read",
        code="DK528",
        file=path,
        target="tvm",
        hint="convert the model again",
    )
