"""The text of a `.param` file: a magic number, two counts, and one line for each layer."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from deploykit.errors import InvalidFileError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_MAGIC = "7767517"
_LONGEST = 255  # characters of a name that ncnn reads
_LARGEST = 64 << 20  # bytes: the largest published networks have thousands of lines


@dataclasses.dataclass(frozen=True, slots=True)
class Layer:
    """One line. inputs, outputs: names of blobs. settings: `key=value`, as they stand there."""

    type: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    settings: tuple[str, ...]

    def line(self) -> str:
        """As ncnn reads it, and pnnx aligns it."""
        head = f"{self.type:<24} {self.name:<24} {len(self.inputs)} {len(self.outputs)}"
        return " ".join((head, *self.inputs, *self.outputs, *self.settings))


def read_param(path: Path) -> list[Layer]:
    """The layers, in order. InvalidFileError (DK528) for another kind of file, or one that contradicts itself."""
    if path.stat().st_size > _LARGEST:
        raise _damaged(path, f"it has {path.stat().st_size:,} bytes")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise _damaged(path, "it is no text") from None
    if not lines or lines[0].strip() != _MAGIC:
        raise _damaged(path, f"it does not begin with {_MAGIC}")
    counts = lines[1].split() if len(lines) > 1 else []
    rows = [line.split() for line in lines[2:] if line.strip()]
    if len(counts) != 2 or not all(map(str.isdecimal, counts)):
        raise _damaged(path, "its second line has no counts")
    if int(counts[0]) != len(rows):
        raise _damaged(path, f"it has {len(rows)} of {counts[0]} layers")
    layers = [_layer(path, number, row) for number, row in enumerate(rows, 3)]
    _expect_order(path, layers, int(counts[1]))
    return layers


def write_param(path: Path, layers: Iterable[Layer]) -> None:
    """Writes the file anew."""
    rows = list(layers)
    blobs = sum(len(layer.outputs) for layer in rows)
    text = "\n".join([_MAGIC, f"{len(rows)} {blobs}", *(layer.line() for layer in rows)])
    path.write_text(text + "\n", encoding="utf-8", newline="\n")


def renamed(layers: Iterable[Layer], names: Mapping[str, str]) -> list[Layer]:
    """The layers with other names for some blobs."""
    return [
        dataclasses.replace(
            layer,
            inputs=tuple(names.get(blob, blob) for blob in layer.inputs),
            outputs=tuple(names.get(blob, blob) for blob in layer.outputs),
        )
        for layer in layers
    ]


def may_be_called(name: str) -> bool:
    """Whether a blob may have this name: ncnn reads words, and cuts them off."""
    return bool(name) and not any(map(str.isspace, name)) and len(name.encode()) <= _LONGEST


def _layer(path: Path, number: int, row: list[str]) -> Layer:
    if len(row) < 4 or not (row[2].isdecimal() and row[3].isdecimal()):
        raise _damaged(path, f"line {number} is no layer")
    taken, given = int(row[2]), int(row[3])
    if len(row) < 4 + taken + given:
        raise _damaged(path, f"line {number} has fewer blobs than it says")
    blobs = row[4 : 4 + taken + given]
    return Layer(row[0], row[1], tuple(blobs[:taken]), tuple(blobs[taken:]), tuple(row[4 + taken + given :]))


def _expect_order(path: Path, layers: Iterable[Layer], count: int) -> None:
    made: set[str] = set()
    for layer in layers:
        missing = [blob for blob in layer.inputs if blob not in made]
        if missing:
            raise _damaged(path, f"layer {layer.name!r} reads {missing[0]!r}, which no layer before it makes")
        twice = [blob for blob in layer.outputs if blob in made]
        if twice:
            raise _damaged(path, f"blob {twice[0]!r} is made twice")
        made.update(layer.outputs)
    if len(made) != count:
        raise _damaged(path, f"it has {len(made)} of {count} blobs")


def _damaged(path: Path, why: str) -> InvalidFileError:
    return InvalidFileError(
        f"{path.name} is no whole ncnn network: {why}",
        code="DK528",
        file=path,
        target="ncnn",
        hint="copy it again, or convert it again",
    )
