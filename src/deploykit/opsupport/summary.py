"""What one target says of a model: a verdict for each node, and what follows from them for the whole."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

from deploykit.opsupport.verdict import Status, Verdict

if TYPE_CHECKING:
    from deploykit.errors import UnavailableError, VendorError
    from deploykit.report import Finding
    from deploykit.target import Target

    Kind = Literal["", "probe", "engine", "measurement", "table"]

REFUSED_WHOLE = "DK202"


@dataclasses.dataclass(frozen=True, slots=True)
class NodeVerdict:
    """A verdict with its node, named as `graph.name_nodes` names it.

    macs: of one call, symbolic dimensions 1. inside: the nodes (If, Loop) whose bodies hold it, outermost first.
    kind: of the source that gave the verdict, "" when nobody spoke. others: verdicts of lesser sources that say the
    opposite. fallback: what the engine says to which the target leaves nodes; None for a target that leaves none.
    scope: the module of the source that the node came from, where the exporter recorded it.
    """

    node: str
    op: str
    domain: str
    verdict: Verdict
    macs: int = 0
    inside: tuple[str, ...] = ()
    kind: Kind = ""
    others: tuple[Verdict, ...] = ()
    fallback: Verdict | None = None
    scope: str | None = None

    @property
    def operator(self) -> str:
        """The operator with its domain, where that is not ONNX's own."""
        return f"{self.domain}.{self.op}" if self.domain not in ("", "ai.onnx") else self.op

    @property
    def outcome(self) -> Status:
        """Whether the node runs at all: what the engine says that takes the target's leavings, where it is refused."""
        if self.verdict.status is Status.UNSUPPORTED and self.fallback is not None:
            return self.fallback.status
        return self.verdict.status


@dataclasses.dataclass(frozen=True, slots=True)
class TargetSummary:
    """What one target says of a model.

    source: who was asked; "" when nobody could be. partitions: pieces the target would run the model in, when it is
    known. findings: what is not about a single node; DK202 among them says that the engine refuses the whole model.
    problem: why the engine could not be asked. leaves_to: title of the engine that takes what the target does not.
    """

    target: Target
    version: str | None
    source: str
    nodes: tuple[NodeVerdict, ...]
    partitions: int | None = None
    findings: tuple[Finding, ...] = ()
    problem: UnavailableError | VendorError | None = None
    leaves_to: str = ""

    @property
    def title(self) -> str:
        """The target's title, with the version where it is not the one that is meant without saying."""
        usual = self.version is None or self.version == next(iter(self.target.versions), None)
        return self.target.title if usual else f"{self.target.title} ({self.version})"

    def of(self, status: Status) -> list[NodeVerdict]:
        """The nodes with that verdict, in graph order."""
        return [node for node in self.nodes if node.verdict.status is status]

    @property
    def refused(self) -> list[NodeVerdict]:
        """The nodes that keep the model from running: refused, and by the engine that takes the rest as well."""
        return [node for node in self.nodes if node.outcome is Status.UNSUPPORTED]

    @property
    def left(self) -> list[NodeVerdict]:
        """The nodes that the target leaves to another engine, which may take them."""
        return [n for n in self.nodes if n.verdict.status is Status.UNSUPPORTED and n.outcome is not Status.UNSUPPORTED]

    @property
    def spoke(self) -> bool:
        """Whether any source spoke about any node."""
        return bool(self.source)

    @property
    def runs(self) -> bool | None:
        """Whether the target runs the model; None when no source says so of every node, or its engine failed."""
        if self.refused or any(finding.code == REFUSED_WHOLE for finding in self.findings):
            return False
        if not self.spoke or (self.problem is not None and self.problem.exit_code == 4):
            return None
        return None if any(node.outcome is Status.UNKNOWN for node in self.nodes) else True

    @property
    def macs_share(self) -> float | None:
        """Share of the multiply-accumulates on nodes that the target takes; None in a model without any.

        What lies in the body of a refused node does not run, whatever is said of it alone.
        """
        total = sum(node.macs for node in self.nodes)
        stopped = {node.node for node in self.nodes if not node.verdict.runs and node.outcome is not Status.SUPPORTED}
        taken = sum(node.macs for node in self.nodes if node.verdict.runs and not stopped.intersection(node.inside))
        return taken / total if total else None

    @property
    def verdict(self) -> str:
        """In words: runs whole, runs in N partitions, does not run, unknown; runs elsewhere where it takes no node."""
        if self.runs is None:
            return "unknown"
        if not self.runs:
            return "does not run"
        if not self.left and (self.partitions or 1) == 1:
            return "runs whole"
        if self.partitions == 0:
            return "runs elsewhere"
        return f"runs in {self.partitions} partition{'' if self.partitions == 1 else 's'}"

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
            "partitions": (self.partitions if self.left else self.partitions or 1) if self.runs else None,
            "verdict": self.verdict,
        }
