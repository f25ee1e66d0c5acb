"""Accuracy of one artifact on labelled data, as a step of the chain."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from deploykit.data.request import data_request
from deploykit.errors import UnavailableError
from deploykit.isolation import run_isolated
from deploykit.progress import OnProgress, silent
from deploykit.report import Finding, Report, note
from deploykit.target import comparison_worker, format_of, target_of_format, unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def evaluate(
    artifact: Path,
    *,
    data: str,
    metric: str,
    label: str | None = None,
    samples: int | None = None,
    contract: Mapping[str, Any] | None = None,
    custom_ops: Mapping[str, str] | None = None,
    seed: int = 0,
    on_progress: OnProgress = silent,
) -> Report:
    """Runs the artifact over labelled data; metrics {"metric", "value", "samples", "engine", "execution", ...}.

    custom_ops: extension libraries by target name.

    An artifact that cannot run on this machine gives a report with a note and no value.
    """
    started = time.perf_counter()
    report = Report(command="evaluate")
    format = format_of(artifact)
    target = target_of_format(format) if format else None
    reason = unavailable(target, simulated=True) if target else "no runtime knows the format"
    if target is None or target.runtime is None or reason is not None:
        report.add(note("DK502", f"{artifact.name} was not evaluated: {reason or 'built here, not run'}"))
        return report
    request = data_request(data, "accuracy", samples=samples, seed=seed, label=label, contract=contract)
    arguments = {"artifact": str(artifact), "data": request, "metric": metric}
    arguments["options"] = {"custom_ops": dict(custom_ops)} if custom_ops else {}
    try:
        result = run_isolated(
            comparison_worker(target),
            "deploykit.comparison:evaluate_job",
            arguments,
            block=target.blocked,
            on_progress=on_progress,
        )
    except UnavailableError as problem:  # known only once it was opened: an operator that is not simulated
        report.add(note("DK502", f"{artifact.name} was not evaluated: {problem.message}", target=target.name))
        return report
    report.add(*(Finding.from_dict(facts) for facts in result.pop("findings", [])))
    report.metrics.update(result)
    report.seconds = time.perf_counter() - started
    return report
