"""Ranges for a model: read from a file when they fit, measured otherwise; with what it took."""

from __future__ import annotations

import dataclasses
import functools
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from deploykit import graph
from deploykit.data import open_request
from deploykit.data.holdout import calibrating, carried, held_out, widened
from deploykit.errors import DataError
from deploykit.quantize.calibration import Calibration
from deploykit.quantize.findings import about_samples
from deploykit.quantize.half_rules import is_single
from deploykit.quantize.ranges import Ranges, load_ranges
from deploykit.quantize.resume import Keeper, is_progress
from deploykit.quantize.taps import sources_of, tapped_session
from deploykit.report import Finding, note

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import onnx_ir as ir

    from deploykit.progress import OnProgress, Progress
    from deploykit.quantize.settings import Settings
    from deploykit.quantize.thresholds import Method

MEBIBYTE = 2**20


@dataclasses.dataclass(slots=True)
class Measured:
    """Ranges, the `calibration` object of the report, and what there was to say.

    observed: gives the calibration behind the ranges; ranges that came from a file run over the data for it.
    """

    ranges: Ranges
    metrics: dict[str, Any]
    findings: list[Finding]
    observed: Callable[[], Calibration]

    def with_method(self, method: Method) -> Ranges:
        """The ranges of the same calibration by another method, without running over the data again."""
        if method == self.ranges.method:
            return self.ranges
        found = self.observed().ranges(method)
        return dataclasses.replace(self.ranges, method=method, tensors=found)


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
    model: ir.Model,
    names: Sequence[str],
    source: Path,
    settings: Settings,
    on_progress: OnProgress,
    factors: Mapping[str, list[float]] | None = None,
) -> Measured:
    """The ranges of the named tensors: from settings.ranges when that file exists, otherwise from the data.

    factors: what the channels of some tensors of the model were divided by; saved with the ranges.
    New ranges are saved to settings.ranges when that is given. Raises DataError as the data and `load_ranges` do.
    """
    method: Method = settings.method
    keys = {"model_sha256": settings.model_sha256, "data_sha256": settings.data_sha256, "method": method}
    file = Path(settings.ranges) if settings.ranges else None
    if file is not None and file.exists() and not is_progress(file):
        ranges = load_ranges(file, **keys)
        said = note("DK360", f"ranges of {ranges.samples} samples were reused from {file.name}: nothing was measured")
        metrics = {"samples": ranges.samples, "seconds": 0.0, "peak_rss_mb": None, "reused": True}
        again = functools.cache(lambda: _observe(model, names, source, settings, on_progress).run)
        return Measured(ranges, metrics, [said], again)
    if file is not None and not settings.calibrates:  # random inputs or labelled ones are no calibration data
        raise DataError(
            f"the calibration in {file.name} is unfinished, and there is no data to go on with",
            code="DK304",
            file=file,
            hint="--calib DATA that it was begun with",
        )
    keeper = None if file is None else Keeper(file, keys)
    seen = _observe(model, names, source, settings, on_progress, keeper=keeper)
    ranges = Ranges(
        tensors=seen.run.ranges(method),
        samples=seen.run.count,
        factors=dict(factors or {}),
        smooth_quant=settings.smooth_quant,
        **keys,
    )
    if file is not None:
        ranges.save(file)
    return Measured(ranges, {**seen.metrics, "method": method}, seen.findings, lambda: seen.run)


@dataclasses.dataclass(frozen=True, slots=True)
class _Observed:
    run: Calibration
    metrics: dict[str, Any]
    findings: list[Finding]


def _observe(
    model: ir.Model,
    names: Sequence[str],
    source: Path,
    settings: Settings,
    on_progress: OnProgress,
    *,
    histograms: bool = True,
    keeper: Keeper | None = None,
) -> _Observed:
    request = settings.data
    assert request is not None
    started = time.perf_counter()
    watch = MemoryWatch(on_progress)
    inputs, _ = graph.interface(model)
    dataset = open_request(widened(request), inputs, source)  # type: ignore[arg-type]
    held = held_out(dataset, request)
    total = None if dataset.total is None else dataset.total - len(held)
    sources = sources_of(model, names)
    with tapped_session(model, list(sources.values())) as session:
        run = Calibration(
            session,
            names,
            lambda: calibrating(dataset, held),
            total=total,
            carry=carried(request),
            on_progress=watch,
            sources=sources,
            histograms=histograms,
            keeper=keeper,
        )
        run.collect()
    metrics = {
        "samples": run.count,
        "held_out": len(held),
        "seconds": round(time.perf_counter() - started, 4),
        "peak_rss_mb": round(watch.peak_mb, 1),
        "reused": False,
    }
    return _Observed(run, metrics, [*dataset.findings, *about_samples(run.count, run.repeated, run.zeros, run.resumed)])


def measure_peaks(
    model: ir.Model, source: Path, settings: Settings, on_progress: OnProgress
) -> tuple[dict[str, float], dict[str, Any], list[Finding]]:
    """The largest magnitude of every float tensor of the main graph over the data, for half precision."""
    names = [
        value.name
        for value in (*model.graph.inputs, *(value for node in model.graph for value in node.outputs))
        if value.name and is_single(value) and value.name not in model.graph.initializers
    ]
    seen = _observe(model, names, source, settings, on_progress, histograms=False)
    peaks = {
        name: max(abs(found.minimum), abs(found.maximum))
        for name, found in seen.run.ranges("minmax").items()
        if found.fired
    }
    return peaks, {**seen.metrics, "method": "minmax"}, seen.findings
