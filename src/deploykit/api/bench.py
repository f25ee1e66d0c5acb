"""`deploykit.bench`: latency, throughput and memory of artifacts, side by side."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from deploykit.api.extensions import extension_libraries
from deploykit.api.validate import DEFAULT_METRIC, described, scored
from deploykit.benchmark import Budgets, Subject, run_bench, verdict
from deploykit.data.request import bounds_of, data_request, with_contract
from deploykit.data.stated import stated_contract
from deploykit.errors import ExitCode, UsageError
from deploykit.evaluation import make_metric
from deploykit.isolation import workers
from deploykit.progress import OnProgress, Progress, silent
from deploykit.report import Report
from deploykit.target import format_of, target_of_format

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from deploykit.api.extensions import CustomOps

_LONGEST_S = 86_400
_MOST_THREADS = 1024  # starting more takes minutes, and no processor has them


def bench(
    *artifacts: str | Path,
    data: str | None = None,
    batch: int = 1,
    threads: int | None = None,
    seconds: float = 3.0,
    eval: str | None = None,
    metric: str | None = None,
    label: str | None = None,
    max_p99_ms: float | None = None,
    min_throughput: float | None = None,
    max_size_mb: float | None = None,
    max_rss_mb: float | None = None,
    contract: Any = None,
    device: Literal["cpu", "gpu", "npu", "all"] = "cpu",
    provider: str | None = None,
    custom_ops: CustomOps = None,
    dims: Iterable[str] | Mapping[str, Sequence[int | None]] = (),
    seed: int = 0,
    on_progress: OnProgress = silent,
) -> Report:
    """Measures artifacts on the same inputs, each in a fresh process, in blocks that take turns.

    data: DATA; random:0 when not given, which a finding says. batch: samples in a call. threads: in a call; None: the
    engine's choice. seconds: measured time of each artifact after its warm-up. eval, metric: labelled DATA for the
    accuracy of each row. Budgets: a broken one is a failure that names number and limit; MB are 10^6 bytes.
    custom_ops: extension libraries, see `extensions.extension_libraries`.
    Returns a report with rows in the order given and a verdict against the first fp32 artifact. Artifacts that do not
    run here have a row with execution "none" and a reason; when none runs, the exit code is 3.
    Raises UsageError, InvalidFileError, ModelError, DataError (DK444 for a batch that cannot be made), VendorError.
    """
    if not artifacts:
        raise UsageError("bench needs at least one artifact", hint="deploykit bench model.onnx model.xml")
    if batch < 1 or not 0 < seconds <= _LONGEST_S:
        raise UsageError(f"batch {batch} must be above 0, and seconds {seconds:g} above 0 and at most {_LONGEST_S}")
    if threads is not None and not 1 <= threads <= _MOST_THREADS:
        raise UsageError(
            f"threads {threads}: 1 to {_MOST_THREADS} are possible",
            hint=f"here are {os.cpu_count()} processors",
        )
    started = time.perf_counter()
    request = data_request(data, "bench", seed=seed, label=label, dims=bounds_of(dims), contract=contract)
    named = [format_of(Path(path)) for path in artifacts]
    libraries = extension_libraries(custom_ops, [target_of_format(name) for name in named if name])
    options = {"device": device, "provider": provider, "threads": threads, "custom_ops": libraries or None}
    with workers():
        subjects = [described(Path(path)) for path in artifacts]
    # What an artifact was made with: an input that is an image takes nothing but pixels.
    request = with_contract(request, *(stated_contract(subject.path) or {} for subject in subjects))
    measured = run_bench(subjects, request, batch=batch, seconds=seconds, options=options, on_progress=on_progress)
    report = Report("bench", findings=list(measured.findings))
    unit = "%"
    if eval is not None:
        name = metric or DEFAULT_METRIC
        unit = make_metric(name).unit
        _score(measured.subjects, {**request, "source": eval, "purpose": "accuracy"}, name, options, on_progress)
    rows = measured.rows()
    report.artifacts = [
        dataclasses.replace(subject.artifact, execution=subject.facts.get("execution", "none"))
        for subject in measured.subjects
    ]
    report.metrics = {
        "rows": rows,
        "verdict": verdict(rows, unit),
        "batch": measured.batch,
        "threads": threads,
        "data": measured.data,
        "metric": (metric or DEFAULT_METRIC) if eval is not None else None,
    }
    report.add(*Budgets(max_p99_ms, min_throughput, max_size_mb, max_rss_mb).check(rows))
    if not any(subject.measured for subject in measured.subjects) and not report.failed:
        report.forced_exit = ExitCode.UNAVAILABLE
    report.seconds = time.perf_counter() - started
    return report


def _score(
    subjects: Sequence[Subject], data: dict[str, Any], metric: str, options: dict[str, Any], on_progress: OnProgress
) -> None:
    """Sets the accuracy of everything that was measured; in other processes, after all timing is over."""
    with workers():
        for index, subject in enumerate(subjects):
            if not subject.measured:
                continue
            on_progress(Progress("evaluating", subject.label, index, len(subjects)))
            others = [other.artifact for other in subjects]
            subject.accuracy = scored(subject.artifact, data, metric, options, silent, others)["value"]
