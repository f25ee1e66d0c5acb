"""Names that Core ML takes: letters, digits and underscores."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# "main" is the function; the others coremltools would rename (passes/defs/preprocess.py).
_RESERVED = {
    "main", "any", "bool", "program", "func", "tensor", "list", "dict", "tuple", "true", "false", "string", "bf16",
    "fp16", "fp32", "fp64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "state",
}  # fmt: skip


def mil_names(names: Iterable[str]) -> dict[str, str]:
    """A valid, unique Core ML name by name; a valid name stays as it is."""
    wanted = list(dict.fromkeys(names))
    valid = {name for name in wanted if _valid(name)}
    result: dict[str, str] = {}
    for name in wanted:
        made = name if _valid(name) else _made(name)
        number = 1
        while made != name and (made in valid or made in result.values()):
            made = f"{_made(name)}_{number}"
            number += 1
        result[name] = made
    return result


def _valid(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is not None and name not in _RESERVED


def _made(name: str) -> str:
    made = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return f"_{made}" if not made or made[0].isdigit() or made in _RESERVED else made
