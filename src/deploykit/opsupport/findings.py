"""What a target's summary amounts to, as findings: what is refused, left to another engine, conditional or unknown."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from deploykit.opsupport.summary import REFUSED_WHOLE, NodeVerdict, TargetSummary
from deploykit.opsupport.verdict import Status
from deploykit.report import Finding, failure, note, warning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_NAMED = 3  # nodes that a message names before it counts
_OF_ONE_NODE = re.compile(r"'[^']*'|\"[^\"]*\"|\[[^\]]*\]|\b\d+\b")
_WHY = {
    "probe": "it compiled and ran this very node",
    "engine": "it is the engine itself and was asked about this very model",
    "measurement": "it is what the engine did with nodes like this one when they were tried",
}


def findings_of(summary: TargetSummary, label: str, *, lenient: bool = False) -> list[Finding]:
    """All that is to be said of one target.

    label: how the report calls it (`onnxruntime@cuda`). lenient: it is enough that some target runs the model, so that
    a refusal of this one is a warning.
    """
    found = [*_unasked(summary, label)]
    if summary.spoke:
        # Causes first; the sort keeps the graph's order among them.
        stopped = sorted(summary.refused, key=lambda node: bool(node.verdict.follows))
        found += [_refused(node, summary, label, lenient=lenient) for node in stopped]
        found += [*_in_pieces(summary, label), *_left(summary, label), *_conditional(summary, label)]
        found += [*_unknown(summary, label), *_disputed(summary, label)]
    return [*found, *(_besides(finding, label, lenient=lenient) for finding in summary.findings)]


def _unasked(summary: TargetSummary, label: str) -> Iterable[Finding]:
    """That the engine was not asked, who speaks in its place, and what brings it."""
    problem = summary.problem
    if problem is None or (summary.spoke and not summary.target.asks_engine(summary.version)):
        return
    instead = f"; {summary.source} speaks in its place" if summary.spoke else ""
    make = note if problem.exit_code == 3 else warning
    told = f"{summary.title} was not asked: {problem.message}{instead}"
    yield make("DK208", told, target=label, hint=problem.hint)


def _refused(node: NodeVerdict, summary: TargetSummary, label: str, *, lenient: bool) -> Finding:
    make = warning if lenient else failure
    facts = _place(node, label)
    holds = {outer for other in summary.nodes if other.node == node.verdict.follows for outer in other.inside}
    if node.verdict.follows and node.node not in holds:
        # Nothing is to be done about a node that goes with its cause, which stands before it.
        return note("DK201", f"{summary.title} refuses {node.operator} because of {node.verdict.follows!r}", **facts)
    told = f"{summary.title} refuses {node.operator}: {node.verdict.reason}{_says(node)}"
    if node.fallback is not None:
        told += f"; {summary.leaves_to} does not take it either: {node.fallback.reason}"
    return make("DK201", told, hint=node.verdict.remedy, **facts)


def _says(node: NodeVerdict) -> str:
    """Who said the reason, unless the reason itself says so."""
    said = node.verdict
    if not said.source or said.source in said.reason:
        return ""
    return f" ({said.source})" if said.source.startswith("measured ") else f" (says {said.source})"


def _kind(reason: str) -> str:
    """A reason without the names and numbers of its node, so that one finding tells it for all nodes like it."""
    return _OF_ONE_NODE.sub("*", reason)


def _in_pieces(summary: TargetSummary, label: str) -> Iterable[Finding]:
    """That the target does not run the model in one piece: copies at each border cost time."""
    if not summary.runs or (not summary.left and (summary.partitions or 1) == 1):
        return
    if summary.partitions == 0:
        told = f"{summary.title} takes none of the nodes: all {len(summary.nodes)} are left to {summary.leaves_to}"
        yield warning("DK219", told, target=label, hint="use that engine by itself, or follow the notes below")
        return
    pieces = f"in {summary.partitions} partitions, with copies between them"
    told = f"{summary.title} runs {'part of ' if summary.left else ''}the model "
    told += "in one partition" if summary.partitions == 1 else pieces
    hint = "the copies take time: measure it"
    if summary.left:
        counts = Counter(node.operator for node in summary.left)
        listed = ", ".join(f"{number} {operator}" for operator, number in counts.most_common(_NAMED))
        more = ", ..." if len(counts) > _NAMED else ""
        told += f"; {len(summary.left)} of {len(summary.nodes)} nodes {'is' if len(summary.left) == 1 else 'are'} left"
        told += f" to {summary.leaves_to}: {listed}{more}"
        hint = ""  # the notes say why each is left
    yield warning("DK212", told, target=label, hint=hint)


def _left(summary: TargetSummary, label: str) -> Iterable[Finding]:
    for nodes in _grouped(summary.left, _cause):
        first = nodes[0]
        told = f"{summary.title} leaves {_named(nodes)} to {summary.leaves_to}: {first.verdict.reason}{_says(first)}"
        yield note("DK218", told, **_place(first, label), hint=first.verdict.remedy)


def _conditional(summary: TargetSummary, label: str) -> Iterable[Finding]:
    for nodes in _grouped(summary.of(Status.CONDITIONAL), _cause):
        first = nodes[0]
        told = f"{summary.title} takes {_named(nodes)} on a condition: {first.verdict.reason}{_says(first)}"
        yield note("DK209", told, **_place(first, label), hint=first.verdict.remedy)


def _cause(node: NodeVerdict) -> tuple[str, ...]:
    """What nodes of any operator have in common: why, what to do, and who says so."""
    return _kind(node.verdict.reason), node.verdict.remedy, node.verdict.source


def _unknown(summary: TargetSummary, label: str) -> Iterable[Finding]:
    """A refused node can leave hundreds behind it unjudged: one finding for each reason."""
    make = note if summary.runs is False else warning
    unknown = [node for node in summary.nodes if node.outcome is Status.UNKNOWN]
    for nodes in _grouped(unknown, lambda node: (_kind(node.verdict.reason),)):
        first = nodes[0]
        said = first.verdict if first.verdict.status is Status.UNKNOWN else first.fallback or first.verdict
        told = f"nobody says whether {summary.title} takes {_named(nodes)}: {said.reason}"
        yield make("DK210", told, **_place(first, label), hint=said.remedy)


def _disputed(summary: TargetSummary, label: str) -> Iterable[Finding]:
    disputes = [(node, other) for node in summary.nodes for other in node.others]
    groups: dict[tuple[str, ...], list[NodeVerdict]] = {}
    for node, other in disputes:
        key = (
            node.operator,
            node.verdict.source,
            _kind(node.verdict.reason),
            other.source,
            _kind(other.reason),
        )
        groups.setdefault(key, []).append(node)
    for (_, _, _, against, _), nodes in groups.items():
        first = nodes[0]
        reason = next(other.reason for other in first.others if other.source == against)
        says, denies = ("runs", "does not run") if first.verdict.runs else ("does not run", "runs")
        ours = f" ({first.verdict.reason})" if first.verdict.reason else ""
        theirs = f" ({reason})" if reason else ""
        told = (
            f"sources disagree about {_named(nodes)}: {first.verdict.source} says that it {says} on {summary.title}"
            f"{ours}, {against} that it {denies}{theirs}; the first is believed, because {_WHY.get(first.kind, '')}"
        )
        yield note("DK217", told, **_place(first, label))


def _grouped(
    nodes: Iterable[NodeVerdict], key: Callable[[NodeVerdict], tuple[str, ...]]
) -> Iterable[list[NodeVerdict]]:
    groups: dict[tuple[str, ...], list[NodeVerdict]] = {}
    for node in nodes:
        groups.setdefault(key(node), []).append(node)
    return groups.values()


def _named(nodes: list[NodeVerdict]) -> str:
    """Some nodes by name, and how many more there are: `Conv 'a'`, `Conv 'a', 'b', 'c' and 37 more like it`."""
    names = ", ".join(repr(node.node) for node in nodes[:_NAMED])
    more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
    kinds = list(dict.fromkeys(node.operator for node in nodes))
    if len(kinds) == 1:
        return f"{kinds[0]} {names}{more}{' like it' if more else ''}"
    return f"{names}{more} ({', '.join(kinds[:5])}{', ...' if len(kinds) > 5 else ''})"


def _place(node: NodeVerdict, label: str) -> dict[str, Any]:
    return {"target": label, "node": node.node, "op": node.op, "scope": node.scope}


def _besides(finding: Finding, label: str, *, lenient: bool) -> Finding:
    """What is not about a node: a refused model is an error like a refused node.

    What else the target needs (bounds of a dimension) is only told here, and demanded by convert.
    """
    placed = dataclasses.replace(finding, target=label)
    if finding.severity != "error" or (finding.code == REFUSED_WHOLE and not lenient):
        return placed
    return dataclasses.replace(placed, severity="warning")
