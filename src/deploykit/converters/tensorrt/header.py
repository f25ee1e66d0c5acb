"""The first bytes of an engine file: which product and version wrote it, without loading anything.

Not documented as a format. NVIDIA's own answer (NVIDIA/TensorRT issue 3073, which autoware's loader follows) is that
bytes 24 to 27 hold major, minor, patch and build; the plans of TensorRT-RTX 1.7 have the same layout. A heuristic:
what it says is compared with the installed version, and a file that it cannot read is left to the runtime.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

CLASSIC = (b"ftrt", b"ptrt")
RTX = (b"vtrt",)
_VERSION = slice(24, 28)
_LEAST = 32
_LONGEST_PREFIX = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Header:
    """product: "tensorrt" or "tensorrt-rtx". version: four numbers. offset: where the plan begins in the file."""

    product: str
    version: tuple[int, int, int, int]
    offset: int = 0

    @property
    def dotted(self) -> str:
        """As the product's version is written: 10.16.1.11."""
        return ".".join(map(str, self.version))


def read_header(path: Path) -> Header | None:
    """The header of an engine file, None for any other file.

    Ultralytics writes its metadata, with its length before it, in front of the plan: that is read over.
    """
    with path.open("rb") as stream:
        start = stream.read(_LEAST)
        found = _header(start, 0)
        length = int.from_bytes(start[:4], "little")
        if found is not None or not 0 < length < _LONGEST_PREFIX or start[4:5] != b"{":
            return found
        stream.seek(4 + length)
        return _header(stream.read(_LEAST), 4 + length)


def _header(start: bytes, offset: int) -> Header | None:
    if len(start) < _LEAST:
        return None
    a, b, c, d = start[_VERSION]
    if start[:4] in CLASSIC:
        return Header("tensorrt", (a, b, c, d), offset)
    return Header("tensorrt-rtx", (a, b, c, d), offset) if start[:4] in RTX else None
