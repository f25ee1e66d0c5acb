"""`deploykit.bench`: latency, throughput and memory of artifacts and servers, side by side."""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from deploykit.api.extensions import extension_libraries
from deploykit.api.validate import DEFAULT_METRIC, described, scored
from deploykit.benchmark import Budgets, ServedSubject, Subject, run_bench, subjects_of, verdict
from deploykit.benchmark.baseline import MAX_SLOWDOWN, Baseline, compare_runs, read_baseline, require_comparable
from deploykit.benchmark.machine import machine
from deploykit.data.request import bounds_of, data_request, with_contract
from deploykit.data.stated import stated_contract
from deploykit.errors import ExitCode, UsageError
from deploykit.evaluation import make_metric
from deploykit.isolation import run_isolated, workers
from deploykit.progress import OnProgress, Progress, silent
from deploykit.report import Report
from deploykit.target import format_of, target_of_format

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from deploykit.api.extensions import CustomOps
    from deploykit.benchmark.rounds import Measured

_LONGEST_S = 86_400
_MOST_THREADS = 1024  # starting more takes minutes, and no processor has them
_MOST_CLIENTS = 256
_MOST_SLOWDOWN = 100.0


def bench(
    *artifacts: str | Path,
    url: str | Sequence[str] = (),
    name: str | None = None,
    clients: int = 1,
    data: str | None = None,
    batch: int = 1,
    threads: int | None = None,
    seconds: float = 3.0,
    per_op: bool = False,
    eval: str | None = None,
    metric: str | None = None,
    label: str | None = None,
    max_drop: float | None = None,
    baseline: str | Path | None = None,
    max_slowdown: float = MAX_SLOWDOWN,
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
    """Measures artifacts and running servers on the same inputs, each from a fresh process, in turns.

    url: of servers that speak the Open Inference Protocol (KServe v2), http(s):// or grpc(s)://; name: their model,
    when they have several; clients: how many call at once. data: DATA; random:0 when not given, which a finding says.
    batch: samples in a call. threads: in a call; None: the engine's choice. seconds: measured time of each artifact
    after its warm-up. per_op: also the engine's own profile of each. eval, metric: labelled DATA for the accuracy of
    each row; max_drop: how much of it a row may lose against the first fp32 one, in the metric's unit. baseline: the
    JSON report of an earlier bench; an artifact that surely takes more than max_slowdown of its latency there fails.
    Budgets: a broken one is a failure that names number and limit; MB are 10^6 bytes.
    custom_ops: extension libraries, see `extensions.extension_libraries`.
    Returns a report with rows in the order given, servers last, and a verdict against the first fp32 artifact. One
    that does not run here has a row with execution "none" and a reason; when none runs, the exit code is 3.
    Raises UsageError, InvalidFileError, ModelError, DataError (DK444 for a batch that cannot be made), UnavailableError
    (DK417 where no server answers), VendorError.
    """
    urls = [url] if isinstance(url, str) else list(url)
    _check(artifacts, urls, batch, seconds, threads, clients, max_slowdown)
    started = time.perf_counter()
    known = read_baseline(Path(baseline)) if baseline is not None else None
    settings: dict[str, Any] = {
        "batch": batch,
        "threads": threads,
        "device": device,
        "provider": provider,
        "clients": clients,
        "machine": machine(),
    }
    if known is not None:
        # Before minutes are spent; a model of fixed size has its own batch, and the data are known later.
        require_comparable(known, {key: value for key, value in settings.items() if key != "batch"})
    request = data_request(data, "bench", seed=seed, label=label, dims=bounds_of(dims), contract=contract)
    named = [format_of(Path(path)) for path in artifacts]
    libraries = extension_libraries(custom_ops, [target_of_format(kind) for kind in named if kind])
    options = {"device": device, "provider": provider, "threads": threads, "custom_ops": libraries or None}
    with workers():
        subjects = [
            *subjects_of([described(Path(path)) for path in artifacts]),
            *(_served(address, name, clients) for address in urls),
        ]
    # What an artifact was made with: an input that is an image takes nothing but pixels.
    carried = (stated_contract(subject.artifact.path) or {} for subject in subjects if not _is_served(subject))
    request = with_contract(request, *carried)
    measure = functools.partial(
        run_bench, subjects, request, batch=batch, seconds=seconds, options=options, on_progress=on_progress
    )
    measured = measure(per_op=per_op)
    settings |= {"batch": measured.batch, "data_digest": measured.digest}
    report = Report("bench", findings=list(measured.findings))
    compared = _against(known, measured, measure, settings, max_slowdown, report) if known is not None else None
    quality = _quality(measured, request, eval, metric, options, on_progress)
    rows = measured.rows()
    report.artifacts = [
        dataclasses.replace(subject.artifact, execution=subject.facts.get("execution", "none"))
        for subject in measured.subjects
        if not _is_served(subject)
    ]
    broken = Budgets(max_p99_ms, min_throughput, max_size_mb, max_rss_mb, max_drop).check(rows, **quality)
    excluded = {row["label"] for row, found in broken if found.severity == "error"}
    report.metrics = {
        "rows": rows,
        "verdict": verdict(rows, **quality, max_drop=max_drop, excluded=excluded),
        **settings,
        "data": measured.data,
        "over_budget": sorted(excluded),
        "metric": (metric or DEFAULT_METRIC) if eval is not None else None,
        **({"baseline": compared} if compared is not None else {}),
    }
    report.add(*(finding for _, finding in broken))
    if not any(subject.measured for subject in measured.subjects) and not report.failed:
        report.forced_exit = ExitCode.UNAVAILABLE
    report.seconds = time.perf_counter() - started
    return report


def _check(
    artifacts: Sequence[str | Path],
    urls: Sequence[str],
    batch: int,
    seconds: float,
    threads: int | None,
    clients: int,
    max_slowdown: float,
) -> None:
    """Raises UsageError for what no machine has and nobody waits for."""
    if not artifacts and not urls:
        raise UsageError("bench needs at least one artifact, or --url", hint="deploykit bench model.onnx model.xml")
    if batch < 1 or not 0 < seconds <= _LONGEST_S:
        raise UsageError(f"batch {batch} must be above 0, and seconds {seconds:g} above 0 and at most {_LONGEST_S}")
    if threads is not None and not 1 <= threads <= _MOST_THREADS:
        raise UsageError(
            f"threads {threads}: 1 to {_MOST_THREADS} are possible",
            hint=f"here are {os.cpu_count()} processors",
        )
    if not 1 <= clients <= _MOST_CLIENTS:
        raise UsageError(f"clients {clients}: 1 to {_MOST_CLIENTS} are possible")
    if clients > 1 and not urls:
        raise UsageError("--clients is for a server", hint="deploykit bench --url http://localhost:8000 --clients 16")
    if not 1 <= max_slowdown <= _MOST_SLOWDOWN:
        raise UsageError(
            f"a slow-down of {max_slowdown:g} is not between 1 and {_MOST_SLOWDOWN:g}",
            hint="--max-slowdown 1.1 allows a tenth more",
        )


def _served(url: str, name: str | None, clients: int) -> ServedSubject:
    found = run_isolated("bench server", "deploykit.benchmark.server:describe_job", {"url": url, "name": name})
    return ServedSubject.of(url, clients, found)


def _is_served(subject: Subject) -> bool:
    return isinstance(subject, ServedSubject)


def _against(
    known: Baseline,
    measured: Measured,
    measure: Callable[[], Measured],
    settings: Mapping[str, Any],
    max_slowdown: float,
    report: Report,
) -> dict[str, Any]:
    """The comparison with the baseline, measured again while it is undecided; its findings go to the report."""
    require_comparable(known, settings)
    compared, findings = compare_runs(known, measured.rows(), lambda: measure().rows(), max_slowdown)
    report.add(*findings)
    return compared


def _quality(
    measured: Measured,
    request: Mapping[str, Any],
    eval: str | None,
    metric: str | None,
    options: dict[str, Any],
    on_progress: OnProgress,
) -> dict[str, Any]:
    """Scores what was measured, where labelled data are given; returns the metric's unit and which way is better."""
    if eval is None:
        return {"unit": "%", "higher_is_better": True}
    name = metric or DEFAULT_METRIC
    made = make_metric(name)
    _score(measured.subjects, {**request, "source": eval, "purpose": "accuracy"}, name, options, on_progress)
    return {"unit": made.unit, "higher_is_better": made.higher_is_better}


def _score(
    subjects: Sequence[Subject], data: dict[str, Any], metric: str, options: dict[str, Any], on_progress: OnProgress
) -> None:
    """Sets the accuracy of everything that was measured; in other processes, after all timing is over."""
    others = [other.artifact for other in subjects if not _is_served(other)]
    with workers():
        for index, subject in enumerate(subjects):
            if not subject.measured:
                continue
            on_progress(Progress("evaluating", subject.label, index, len(subjects)))
            if isinstance(subject, ServedSubject):
                arguments = {"url": subject.url, "name": subject.name, "data": data, "metric": metric}
                models = [str(other.path) for other in others]
                job = "deploykit.benchmark.server:evaluate_job"
                subject.accuracy = run_isolated("bench server", job, {**arguments, "models": models})["value"]
            else:
                subject.accuracy = scored(subject.artifact, data, metric, options, silent, others)["value"]
