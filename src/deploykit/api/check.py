"""`deploykit check`: every problem that a model has with each target, all at once, before anything is converted."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit import io
from deploykit.data.request import bounds_of
from deploykit.errors import UsageError
from deploykit.opsupport.checker import REFUSED_WHOLE, NodeVerdict, TargetSummary, check_model
from deploykit.opsupport.verdict import Status
from deploykit.progress import OnProgress, silent
from deploykit.report import Finding, Report, failure, note, warning
from deploykit.target import check_options, parse_target, target_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ALL = "all"


def check(
    model: str | Path,
    *,
    targets: Sequence[str],
    dims: Iterable[str] | Mapping[str, Sequence[int | None]] = (),
    profiles: Mapping[str, Sequence[Sequence[int]]] | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    force: bool = False,
    seed: int = 0,
    on_progress: OnProgress = silent,
) -> Report:
    """Asks each target's own engine or tables about every node of an ONNX model.

    targets: `name` or `name@version`, or `all`. dims: `batch=1..64`, or bounds by name. options: by target name.
    Returns a report with one finding for each refused node (error: its target does not run the model) and
    `metrics["targets"]`, one summary for each target. With `all` the report fails only when no target runs the model.
    Raises UsageError for a target or option, ModelError or InvalidFileError for the file, and UnavailableError or
    VendorError when there is one target only and it cannot be asked.
    """
    started = time.perf_counter()
    everything = ALL in targets
    names = target_names() if everything else list(dict.fromkeys(targets))
    if not names:
        raise UsageError("no target is named", hint=f"--target {','.join(target_names())}, or --target {ALL}")
    for name in names:
        target, _ = parse_target(name)
        check_options(target, (options or {}).get(target.name, {}))
    summaries = check_model(
        io.existing_file(Path(model), "model"),
        names,
        dims=bounds_of(dims),
        profiles=profiles,
        options=options,
        on_progress=on_progress,
    )
    if len(summaries) == 1 and not everything and summaries[0].problem is not None:
        raise summaries[0].problem
    report = Report("check", metrics={"targets": [summary.as_dict() for summary in summaries]})
    lenient = everything and any(summary.runs for summary in summaries)
    for summary in summaries:
        report.add(*_findings(summary, lenient=lenient))
    if everything and not any(summary.runs is not False for summary in summaries):
        report.add(failure("DK211", "no target runs this model as it is", hint="the findings above say what to change"))
    report.seconds = time.perf_counter() - started
    return report


def _findings(summary: TargetSummary, *, lenient: bool) -> list[Finding]:
    target = summary.target.name
    if summary.problem is not None:
        told = f"{summary.target.title} was not asked: {summary.problem.message}"
        make = note if summary.problem.exit_code == 3 else warning
        return [make("DK208", told, target=target, hint=summary.problem.hint)]
    # Causes first; the sort keeps the graph's order among them.
    stopped = sorted(summary.of(Status.UNSUPPORTED), key=lambda node: bool(node.verdict.follows))
    refused = [_refused(node, summary, lenient=lenient) for node in stopped]
    found = [*refused, *_grouped(summary, Status.CONDITIONAL), *_grouped(summary, Status.UNKNOWN)]
    if summary.runs and (summary.partitions or 1) > 1:
        told = f"{summary.target.title} runs the model in {summary.partitions} partitions, with copies between them"
        found.append(warning("DK212", told, target=target, hint="the slower parts are those left to another engine"))
    return [*found, *(_besides(finding, lenient=lenient) for finding in summary.findings)]


def _besides(finding: Finding, *, lenient: bool) -> Finding:
    """What is not about a node: a refused model is an error like a refused node.

    What else the target needs (bounds of a dimension) is only told here, and demanded by convert.
    """
    if finding.severity != "error" or (finding.code == REFUSED_WHOLE and not lenient):
        return finding
    return dataclasses.replace(finding, severity="warning")


def _refused(node: NodeVerdict, summary: TargetSummary, *, lenient: bool) -> Finding:
    make = warning if lenient else failure
    holds = {outer for other in summary.nodes if other.node == node.verdict.follows for outer in other.inside}
    if node.verdict.follows and node.node not in holds:
        # Nothing is to be done about a node that goes with its cause, which stands before it.
        told = (
            f"{summary.target.title} refuses node {node.node!r} ({node.operator}) because of {node.verdict.follows!r}"
        )
        return note("DK201", told, target=summary.target.name, node=node.node, op=node.op)
    return make(
        "DK201",
        f"{summary.target.title} refuses node {node.node!r} ({node.operator}): {node.verdict.reason}",
        target=summary.target.name,
        node=node.node,
        op=node.op,
        hint=node.verdict.remedy,
    )


def _grouped(summary: TargetSummary, status: Status) -> list[Finding]:
    """One finding for each reason, with its first node: a refused node can leave hundreds behind it unjudged."""
    groups: dict[tuple[str, str], list[NodeVerdict]] = {}
    for node in summary.of(status):
        groups.setdefault((node.verdict.reason, node.verdict.remedy), []).append(node)
    found = []
    for (reason, remedy), nodes in groups.items():
        first = nodes[0]
        others = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
        place = f"node {first.node!r} ({first.operator}){others}"
        facts = {"target": summary.target.name, "node": first.node, "op": first.op, "hint": remedy}
        if status is Status.CONDITIONAL:
            found.append(note("DK209", f"{summary.target.title} takes {place} on a condition: {reason}", **facts))
        else:
            make = note if summary.runs is False else warning
            found.append(make("DK210", f"nobody says whether {summary.target.title} takes {place}: {reason}", **facts))
    return found
