"""Samples with their float outputs, kept for many comparisons in bounded memory."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.data import Sample
from deploykit.parity import as_array

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    Array = np.ndarray[Any, Any]

IN_MEMORY = 64 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class _Kept:
    sample: Sample
    outputs: dict[str, Array]

    def get(self) -> tuple[Sample, dict[str, Array]]:
        return self.sample, self.outputs


@dataclasses.dataclass(frozen=True, slots=True)
class _Filed:
    name: str
    feeds: Path
    outputs: Path

    def get(self) -> tuple[Sample, dict[str, Array]]:
        return Sample(_read(self.feeds), None, self.name), _read(self.outputs)


class SampleStore:
    """Gives what was added, in order, as often as wanted; beyond 64 MiB of arrays the rest lies in files."""

    def __init__(self, folder: Path, *, limit: int = IN_MEMORY) -> None:
        """folder: for the files. limit: bytes of arrays to keep in memory."""
        self._folder = folder
        self._left = limit
        self._items: list[_Kept | _Filed] = []

    def __len__(self) -> int:
        return len(self._items)

    def add(self, sample: Sample, outputs: Mapping[str, Any]) -> None:
        """Keeps a sample, without its label, and the outputs."""
        kept = {name: as_array(value) for name, value in outputs.items()}
        size = sum(array.nbytes for array in (*sample.feeds.values(), *kept.values()))
        if size <= self._left:
            self._left -= size
            self._items.append(_Kept(Sample(sample.feeds, None, sample.name), kept))
        else:
            self._left = 0  # from here on all in files: the order of reading stays the order of memory
            self._items.append(_Filed(sample.name, self._write(sample.feeds, "feeds"), self._write(kept, "outputs")))

    def _write(self, arrays: Mapping[str, Array], what: str) -> Path:
        path = self._folder / f"{len(self._items)}.{what}.npz"
        # Strings come as objects, which only pickle would store.
        plain = [array.astype(str) if array.dtype == object else array for array in arrays.values()]
        np.savez(path, np.array(list(arrays)), *plain)
        return path

    def __iter__(self) -> Iterator[tuple[Sample, dict[str, Array]]]:
        """The samples with the float outputs."""
        return (item.get() for item in self._items)


def _read(path: Path) -> dict[str, Array]:
    with np.load(path, allow_pickle=False) as stored:
        names = stored["arr_0"].tolist()
        arrays = [stored[f"arr_{index + 1}"] for index in range(len(names))]
    return {
        name: array.astype(object) if array.dtype.kind == "U" else array
        for name, array in zip(names, arrays, strict=True)
    }
