"""What GPTQ needs to know of activations: sum of x x^T over the data, streamed; memory independent of the samples."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit import graph
from deploykit.data import CarriedState, open_request
from deploykit.data.holdout import calibrating, carried, held_out, widened
from deploykit.errors import DataError
from deploykit.progress import Progress
from deploykit.quantize.taps import run_tapped, tapped_session

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import onnx_ir as ir

    from deploykit.progress import OnProgress
    from deploykit.quantize.settings import Settings

Array = np.ndarray[Any, Any]
# Matrices that are filled in one pass over the data, together: more of them take further passes.
BUDGET = 1 << 29
# A single matrix above this (11,585 columns) is not worth its memory, five times that with its factors, and its time.
LARGEST = 1 << 29
# Vectors taken from one tensor of one sample, evenly spaced: convolutions have one a pixel.
VECTORS = 1 << 14


@dataclasses.dataclass(frozen=True, slots=True)
class Tap:
    """An activation: its name, how many columns its weights have, and the axis that is summed over."""

    name: str
    columns: int
    axis: int = -1

    @property
    def nbytes(self) -> int:
        """Memory of its matrix."""
        return 4 * self.columns**2


@dataclasses.dataclass(slots=True)
class Streamed:
    """One pass: matrices by tap, and how many samples and vectors they rest on."""

    matrices: dict[Tap, Array]
    samples: int = 0
    vectors: dict[Tap, int] = dataclasses.field(default_factory=dict)


def passes(taps: Sequence[Tap]) -> list[list[Tap]]:
    """The taps in groups whose matrices fit in the budget together; each group takes one pass over the data."""
    groups: list[list[Tap]] = []
    room = 0
    for tap in taps:
        if not groups or tap.nbytes > room:
            groups.append([])
            room = BUDGET
        groups[-1].append(tap)
        room -= tap.nbytes
    return groups


def stream(
    model: ir.Model, taps: Sequence[Tap], source: Path, settings: Settings, on_progress: OnProgress
) -> Iterator[Streamed]:
    """One `Streamed` a pass; the model stays as it is until the caller has done with all of them.

    Raises DataError (DK363) when there is no sample, GateError (DK201) when onnxruntime does not take the model.
    """
    request = settings.data
    assert request is not None
    inputs, _ = graph.interface(model)
    dataset = open_request(widened(request), inputs, source)  # type: ignore[arg-type]
    held = held_out(dataset, request)
    total = None if dataset.total is None else dataset.total - len(held)
    groups = passes(taps)
    for number, group in enumerate(groups):
        found = Streamed({tap: np.zeros((tap.columns, tap.columns), np.float32) for tap in group})
        with tapped_session(model, [tap.name for tap in group]) as session:
            names = [output.name for output in session.get_outputs()]
            wanted = list(
                dict.fromkeys([*(tap.name for tap in group if tap.name in names), *carried(request).values()])
            )
            state = CarriedState(carried(request))
            for sample in calibrating(dataset, held):
                feeds = state.fill(sample.feeds)
                values = run_tapped(session, feeds, wanted, sample.name) if wanted else {}
                state.update(values)
                values.update(feeds)
                for tap in group:
                    _add(found, tap, values[tap.name])
                found.samples += 1
                done = found.samples + number * (total or found.samples)
                on_progress(
                    Progress("measuring activations", sample.name, done, None if total is None else total * len(groups))
                )
        if found.samples == 0:
            raise DataError(
                "the calibration data has no sample",
                code="DK363",
                hint="give --calib a file or folder with at least one sample, better some hundred",
            )
        yield found


def _add(found: Streamed, tap: Tap, value: Array) -> None:
    vectors = np.moveaxis(value, tap.axis, -1).reshape(-1, tap.columns).astype(np.float32, copy=False)
    if vectors.shape[0] > VECTORS:
        vectors = vectors[:: -(-vectors.shape[0] // VECTORS)]
    if not np.isfinite(vectors).all():
        vectors = vectors[np.isfinite(vectors).all(axis=1)]
    found.matrices[tap] += vectors.T @ vectors
    found.vectors[tap] = found.vectors.get(tap, 0) + vectors.shape[0]
