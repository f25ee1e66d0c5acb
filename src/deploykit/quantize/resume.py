"""Resuming: what a calibration has seen, saved now and then at the place where its ranges will be.

The file is a .npz until the calibration is finished, when the ranges (JSON) replace it. It is written whole or not at
all, and belongs to one model, data and method, like the ranges.
"""

from __future__ import annotations

import dataclasses
import json
import time
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit import io
from deploykit.quantize.observers import HistogramObserver, RangeObserver
from deploykit.quantize.ranges import check_keys

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

SCHEMA = "deploykit.ranges-progress/1"
# Seconds between two saves; and a save may take at most this share of the time between them.
EVERY = 5.0
SHARE = 0.02
STATE = "state:"


@dataclasses.dataclass(slots=True)
class Saved:
    """Everything that a calibration needs to go on. prints: checksums of the samples. state: of carried inputs."""

    samples: int
    zeros: int
    prints: list[int]
    ranges: RangeObserver
    histograms: list[HistogramObserver]
    state: Mapping[str, np.ndarray[Any, Any]]


class Keeper:
    """Saves to one file, and loads what an interrupted run saved there."""

    def __init__(self, path: Path, keys: Mapping[str, str]) -> None:
        """keys: digests of model and data, and the method."""
        self._path = path
        self._keys = dict(keys)
        self._next = time.monotonic() + EVERY
        self._tensors: list[str] = []

    def due(self) -> bool:
        """Whether it is time to save."""
        return time.monotonic() >= self._next

    def save(self, saved: Saved) -> None:
        """Writes the file anew."""
        started = time.monotonic()
        about = {
            "schema": SCHEMA,
            "keys": self._keys,
            "tensors": self._tensors,
            "samples": saved.samples,
            "zeros": saved.zeros,
            "prints": saved.prints,
        }
        arrays = {field: getattr(saved.ranges, field) for field in (*RangeObserver.FIELDS, *RangeObserver.COUNTS)}
        if saved.histograms:
            arrays["exponents"] = np.array([histogram.exponent for histogram in saved.histograms], np.int64)
            arrays["counts"] = np.stack([histogram.counts for histogram in saved.histograms])
        arrays |= {STATE + name: array for name, array in saved.state.items()}
        with io.staged(self._path, force=True) as temporary, temporary.open("wb") as file:
            np.savez(file, about=np.array(json.dumps(about)), **arrays)
        now = time.monotonic()
        self._next = now + max(EVERY, (now - started) / SHARE)

    def load(self, tensors: Sequence[str]) -> Saved | None:
        """What was saved about these tensors; None when the file is not there or holds other tensors.

        Raises DataError (DK362) when it belongs to another model, data or method.
        """
        self._tensors = list(tensors)
        if not is_progress(self._path):
            return None
        with np.load(self._path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        about = json.loads(str(arrays.pop("about")))
        check_keys(self._path, found=about["keys"], wanted=self._keys)
        if about["schema"] != SCHEMA or about["tensors"] != self._tensors:  # of another version of deploykit
            return None
        ranges = RangeObserver(len(self._tensors))
        for field in (*RangeObserver.FIELDS, *RangeObserver.COUNTS):
            setattr(ranges, field, arrays[field])
        histograms = []
        for exponent, counts in zip(arrays.get("exponents", ()), arrays.get("counts", ()), strict=True):
            histogram = HistogramObserver()
            histogram.exponent, histogram.counts = int(exponent), counts.copy()
            histograms.append(histogram)
        state = {name.removeprefix(STATE): array for name, array in arrays.items() if name.startswith(STATE)}
        return Saved(about["samples"], about["zeros"], about["prints"], ranges, histograms, state)


def is_progress(path: Path) -> bool:
    """Whether the file holds an unfinished calibration."""
    try:
        with zipfile.ZipFile(path) as archive:
            return "about.npy" in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False
