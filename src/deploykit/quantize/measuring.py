"""Ranges for a model: read from a file when they fit, measured otherwise; with what it took."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from deploykit import graph
from deploykit.data import open_request
from deploykit.quantize.calibration import Calibration, tapped_session
from deploykit.quantize.holdout import calibrating, carried, held_out, widened
from deploykit.quantize.ranges import Ranges, load_ranges
from deploykit.report import Finding, note

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx_ir as ir

    from deploykit.progress import OnProgress, Progress
    from deploykit.quantize.settings import Settings
    from deploykit.quantize.thresholds import Method

MEBIBYTE = 2**20


@dataclasses.dataclass(slots=True)
class Measured:
    """Ranges, the `calibration` object of the report, and what there was to say."""

    ranges: Ranges
    metrics: dict[str, Any]
    findings: list[Finding]


class MemoryWatch:
    """The largest resident memory of this process at the steps of a long job, in MiB."""

    def __init__(self, on_progress: OnProgress) -> None:
        self._process = psutil.Process()
        self._on_progress = on_progress
        self.peak_mb = self._now()

    def _now(self) -> float:
        return float(self._process.memory_info().rss) / MEBIBYTE

    def __call__(self, step: Progress) -> None:
        """Looks at the memory and passes the step on."""
        self.peak_mb = max(self.peak_mb, self._now())
        self._on_progress(step)


def measure_ranges(
    model: ir.Model, names: Sequence[str], source: Path, settings: Settings, on_progress: OnProgress
) -> Measured:
    """The ranges of the named tensors: from settings.ranges when that file exists, otherwise from the data.

    New ranges are saved to settings.ranges when that is given. Raises DataError as the data and `load_ranges` do.
    """
    method: Method = settings.method
    keys = {"model_sha256": settings.model_sha256, "data_sha256": settings.data_sha256, "method": method}
    file = Path(settings.ranges) if settings.ranges else None
    if file is not None and file.exists():
        ranges = load_ranges(file, **keys)
        said = note("DK360", f"ranges of {ranges.samples} samples were reused from {file.name}: nothing was measured")
        return Measured(
            ranges, {"samples": ranges.samples, "seconds": 0.0, "peak_rss_mb": None, "reused": True}, [said]
        )
    measured = _measure(model, names, source, settings, method, keys, on_progress)
    if file is not None:
        measured.ranges.save(file)
    return measured


def _measure(
    model: ir.Model,
    names: Sequence[str],
    source: Path,
    settings: Settings,
    method: Method,
    keys: Mapping[str, str],
    on_progress: OnProgress,
) -> Measured:
    request = settings.data
    assert request is not None
    started = time.perf_counter()
    watch = MemoryWatch(on_progress)
    inputs, _ = graph.interface(model)
    dataset = open_request(widened(request), inputs, source)  # type: ignore[arg-type]
    held = held_out(dataset, request)
    total = None if dataset.total is None else dataset.total - len(held)
    with tapped_session(model, names) as session:
        run = Calibration(
            session,
            names,
            lambda: calibrating(dataset, held),
            total=total,
            carry=carried(request),
            on_progress=watch,
        )
        tensors = run.run(method)
    metrics = {
        "samples": run.count,
        "held_out": len(held),
        "method": method,
        "seconds": round(time.perf_counter() - started, 4),
        "peak_rss_mb": round(watch.peak_mb, 1),
        "reused": False,
    }
    return Measured(Ranges(tensors=tensors, samples=run.count, **keys), metrics, list(dataset.findings))


def measure_peaks(
    model: ir.Model, source: Path, settings: Settings, on_progress: OnProgress
) -> tuple[dict[str, float], dict[str, Any], list[Finding]]:
    """The largest magnitude of every float tensor of the main graph over the data, for half precision."""
    import onnx_ir as ir_

    names = [
        value.name
        for value in (*model.graph.inputs, *(value for node in model.graph for value in node.outputs))
        if value.name and value.dtype == ir_.DataType.FLOAT and value.name not in model.graph.initializers
    ]
    keys = {"model_sha256": settings.model_sha256, "data_sha256": settings.data_sha256, "method": "minmax"}
    measured = _measure(model, names, source, settings, "minmax", keys, on_progress)
    peaks = {
        name: max(abs(found.minimum), abs(found.maximum))
        for name, found in measured.ranges.tensors.items()
        if found.fired
    }
    return peaks, measured.metrics, measured.findings
