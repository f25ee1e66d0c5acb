"""Asks every target's own source of truth about a model's nodes, each in its worker, and adds up the answers."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Any

from deploykit import graph, lazy
from deploykit.errors import UnavailableError, VendorError
from deploykit.isolation import run_isolated, workers
from deploykit.opsupport.verdict import Status, Verdict
from deploykit.progress import OnProgress, Progress, silent
from deploykit.report import Finding
from deploykit.target import Target, parse_target

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

REFUSED_WHOLE = "DK202"


@dataclasses.dataclass(frozen=True, slots=True)
class NodeVerdict:
    """A verdict with its node, named as `graph.name_nodes` names it.

    macs: of one call, symbolic dimensions 1. inside: the nodes (If, Loop) whose bodies hold it, outermost first.
    """

    node: str
    op: str
    domain: str
    verdict: Verdict
    macs: int = 0
    inside: tuple[str, ...] = ()

    @property
    def operator(self) -> str:
        """The operator with its domain, where that is not ONNX's own."""
        return f"{self.domain}.{self.op}" if self.domain not in ("", "ai.onnx") else self.op


@dataclasses.dataclass(frozen=True, slots=True)
class TargetSummary:
    """What one target says of a model.

    source: who was asked; "" when nobody could be. partitions: pieces the target would run the model in, when it says.
    findings: what is not about a single node; DK202 among them says that the engine refuses the model as a whole.
    problem: why the source could not be asked.
    """

    target: Target
    version: str | None
    source: str
    nodes: tuple[NodeVerdict, ...]
    partitions: int | None = None
    findings: tuple[Finding, ...] = ()
    problem: UnavailableError | VendorError | None = None

    def of(self, status: Status) -> list[NodeVerdict]:
        """The nodes with that verdict, in graph order."""
        return [node for node in self.nodes if node.verdict.status is status]

    @property
    def runs(self) -> bool | None:
        """Whether the target runs the model; None when no source says."""
        if self.problem is not None:
            return None
        if self.of(Status.UNSUPPORTED) or any(finding.code == REFUSED_WHOLE for finding in self.findings):
            return False
        return None if self.of(Status.UNKNOWN) else True

    @property
    def macs_share(self) -> float | None:
        """Share of the multiply-accumulates on nodes that the target takes; None in a model without any.

        What lies in the body of a refused node does not run, whatever is said of it alone.
        """
        total = sum(node.macs for node in self.nodes)
        stopped = {node.node for node in self.nodes if not node.verdict.runs}
        taken = sum(node.macs for node in self.nodes if node.verdict.runs and not stopped.intersection(node.inside))
        return taken / total if total else None

    @property
    def verdict(self) -> str:
        """In words: runs whole, runs in N partitions, does not run, unknown."""
        if self.runs is None:
            return "unknown"
        if not self.runs:
            return "does not run"
        return f"runs in {self.partitions} partitions" if (self.partitions or 1) > 1 else "runs whole"

    def as_dict(self) -> dict[str, Any]:
        """One entry of `metrics.targets` in the JSON contract."""
        counts = Counter(str(node.verdict.status) for node in self.nodes)
        return {
            "name": self.target.name,
            "version": self.version,
            "source": self.source or None,
            **{str(status): counts[str(status)] for status in Status},
            "nodes": len(self.nodes),
            "macs_share": self.macs_share,
            "partitions": self.partitions if self.runs else None,
            "verdict": self.verdict,
        }


def check_model(
    path: Path,
    targets: Iterable[str],
    *,
    dims: Mapping[str, Sequence[int | None]] | None = None,
    profiles: Mapping[str, Sequence[Sequence[int]]] | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    on_progress: OnProgress = silent,
) -> list[TargetSummary]:
    """The answers of all targets (`name` or `name@version`), in their order; every node has a verdict in each.

    dims: bounds by symbol. profiles: shapes by input. options: each target's `--option`s, by target name.
    A target whose engine is not installed or fails is UNKNOWN in every node, and its summary has the problem.
    Raises ModelError or InvalidFileError for the file, UsageError for a target or an option.
    """
    chosen = [parse_target(text) for text in targets]
    model = graph.load(path)
    work = graph.macs(model)
    unjudged = Verdict(Status.UNKNOWN, "nobody was asked", "deploykit doctor")
    holders = _holders(graph.name_nodes(model).graph)
    nodes = [
        NodeVerdict(name, node.op_type, node.domain, unjudged, work.get(name, 0), holders.get(name, ()))
        for node in graph.all_nodes(model)
        for name in (node.name or "",)
    ]
    summaries = []
    with workers():
        for done, (target, version) in enumerate(chosen):
            on_progress(Progress("checking", target.title, done, len(chosen)))
            settings = {**(options or {}).get(target.name, {}), **({"version": version} if version else {})}
            arguments = {"model": str(path), "options": settings, "dims": dims or {}, "profiles": profiles or {}}
            summaries.append(_ask(target, version, arguments, nodes))
    return summaries


def _holders(holder: Any, inside: tuple[str, ...] = ()) -> dict[str, tuple[str, ...]]:
    """For each node in a body, by name: the nodes that hold it."""
    from onnx_ir import AttributeType

    found: dict[str, tuple[str, ...]] = {}
    for node in holder:
        found[node.name] = inside
        for attribute in node.attributes.values():
            if attribute.type == AttributeType.GRAPH:
                found |= _holders(attribute.as_graph(), (*inside, node.name))
    return found


def _ask(
    target: Target, version: str | None, arguments: Mapping[str, Any], nodes: Sequence[NodeVerdict]
) -> TargetSummary:
    try:
        if target.support is None:
            raise UnavailableError(f"{target.title} has no source that says which operators it takes", code="DK208")
        for package in target.packages:
            if not lazy.installed(package):
                raise lazy.missing(package, target.extra or target.name, f"asking {target.title} about the model")
        answer = run_isolated(target.worker, target.support, arguments, block=target.blocked)
    except (UnavailableError, VendorError) as problem:
        unasked = Verdict(Status.UNKNOWN, problem.message, problem.hint or "deploykit doctor")
        judged = tuple(dataclasses.replace(node, verdict=unasked) for node in nodes)
        return TargetSummary(target, version, "", judged, problem=problem)
    findings = tuple(Finding.from_dict(facts) for facts in answer["findings"])
    judged = tuple(_matched(answer["nodes"], nodes))
    return TargetSummary(target, version, answer["source"], judged, answer["partitions"], findings)


def _matched(rows: Sequence[dict[str, Any]], nodes: Sequence[NodeVerdict]) -> Iterator[NodeVerdict]:
    """The nodes with their verdicts: by position where the order is the same (sources may leave nodes nameless)."""
    aligned = [row["op"] for row in rows] == [node.op for node in nodes]
    by_name = {row["node"]: row for row in rows}
    for index, node in enumerate(nodes):
        row = rows[index] if aligned else by_name.get(node.node)
        if row is None:
            said = Verdict(Status.UNKNOWN, "the target's source says nothing of it", "convert the model to find out")
        else:
            said = Verdict.from_dict(row)
        yield dataclasses.replace(node, verdict=said)
