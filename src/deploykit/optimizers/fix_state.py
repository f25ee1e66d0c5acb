"""A model on the way of `check --fix`: what its targets say of it, and whether that is better than before."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from typing import TYPE_CHECKING, TypeAlias

from deploykit.opsupport.verdict import Status

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from deploykit.opsupport.checker import TargetSummary
    from deploykit.optimizers.rewriting import Change, Rewrite

# Findings of bounds and profiles are answered by options, not by another graph.
_BY_OPTION = frozenset({"DK520", "DK521"})

_RUNS = (Status.SUPPORTED, Status.CONDITIONAL)

# (target, "node", its name) or (target, finding's code, tensor or ""): what stands against the model.
Complaint: TypeAlias = tuple[str, str, str]


@dataclasses.dataclass(frozen=True)
class Step:
    """One rewrite as it was applied: its changes, and the operator of each node that went or came, by name."""

    rewrite: Rewrite
    changes: tuple[Change, ...]
    operators: Mapping[str, str]

    @property
    def removed(self) -> list[str]:
        """Names of the nodes that went."""
        return list(dict.fromkeys(name for change in self.changes for name in change.removed))

    @property
    def added(self) -> list[str]:
        """Names of the nodes that came."""
        return list(dict.fromkeys(name for change in self.changes for name in change.added))


@dataclasses.dataclass(frozen=True)
class State:
    """A model on the way, what the targets say of it, and how it came about.

    origin: for each node that came, the nodes of the first model that it stands for.
    """

    path: Path
    summaries: tuple[TargetSummary, ...]
    steps: tuple[Step, ...] = ()
    origin: Mapping[str, frozenset[str]] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def labelled(self) -> list[tuple[str, TargetSummary]]:
        """Each target's answer under its name, with the version where several versions were asked."""
        names = Counter(summary.target.name for summary in self.summaries)
        return [
            (s.target.name if names[s.target.name] == 1 else f"{s.target.name}@{s.version}", s) for s in self.summaries
        ]

    @functools.cached_property
    def own(self) -> dict[Complaint, str]:
        """What stands against the model, with the reason. A node that is refused because of another is not counted.

        What a target leaves to another engine counts: a rewrite may keep it where the rest is.
        """
        found: dict[Complaint, str] = {}
        for name, summary in self.labelled:
            for node in summary.of(Status.UNSUPPORTED):
                if not node.verdict.follows:
                    found[name, "node", node.node] = node.verdict.reason
            for finding in summary.findings:
                if finding.severity == "error" and finding.code not in _BY_OPTION:
                    found[name, finding.code, finding.tensor or ""] = finding.message
        return found

    @property
    def refused(self) -> bool:
        """Whether some target does not run the model: more stands against it than nodes left to another engine."""
        asked = any(kind != "node" for _, kind, _ in self.own)
        return asked or any(summary.refused for summary in self.summaries)

    @functools.cached_property
    def stopped(self) -> frozenset[tuple[str, str]]:
        """(target, node) for every node that a target does not take, for whatever reason, or says nothing of."""
        return frozenset(
            (label, node.node) for label, s in self.labelled for node in s.nodes if node.verdict.status not in _RUNS
        )

    @functools.cached_property
    def unjudged(self) -> frozenset[tuple[str, str]]:
        """(target, node) for every node that a target which refuses others has not come to judge."""
        refusing = {target for target, _, _ in self.own}
        return frozenset(
            (label, node.node)
            for label, s in self.labelled
            for node in s.nodes
            if label in refusing and node.outcome is Status.UNKNOWN
        )

    @functools.cached_property
    def ops(self) -> dict[str, str]:
        """The operator of every node."""
        return {node.node: node.op for summary in self.summaries for node in summary.nodes}

    @functools.cached_property
    def signature(self) -> Counter[Complaint]:
        """What kinds of node are stopped, how many of each, and what else stands against the model."""
        stopped = Counter((target, "node", self.ops[name]) for target, name in self.stopped)
        return stopped + Counter(complaint for complaint in self.own if complaint[1] != "node")

    def complaints(self) -> set[Complaint]:
        """What stands against the model in terms of the first one: a node that came stands for those that went.

        A node that came and that nobody judges is no better than what it stands for.
        """
        found: set[Complaint] = set()
        for target, kind, name in self.own:
            stands_for = self.origin.get(name, frozenset({name})) if kind == "node" else frozenset({name})
            found.update((target, kind, first) for first in stands_for)
        for label, summary in self.labelled:
            for node in summary.nodes:
                if node.outcome is not Status.UNKNOWN:
                    continue
                found.update((label, "node", first) for first in self.origin.get(node.node, ()))
        return found


def better(base: State, made: State) -> bool:
    """Whether complaints are gone, and none came about what was running or was not there."""
    if any(m.problem and not b.problem for b, m in zip(base.summaries, made.summaries, strict=True)):
        return False
    before, after = base.complaints(), made.complaints()
    hidden = {target for target, kind, _ in before if kind != "node"}
    fresh = {
        (target, kind, name)
        for target, kind, name in after - before
        if ((target, name) not in base.stopped if kind == "node" else target not in hidden)
    }
    return bool(before - after) and not fresh


def leads_nowhere(on: State, made: State) -> bool:
    """Whether the second rewrite of a chain only gave more of what it was to replace."""
    before, after = on.signature, made.signature
    return before.keys() == after.keys() and all(after[key] >= before[key] for key in before)


def worth_its_interface(base: State, made: State) -> bool:
    """Whether the interface is as it was, or its change is what a target needed to run the model at last."""
    if not any(step.rewrite.interface for step in made.steps[len(base.steps) :]):
        return True
    return bool({target for target, _, _ in base.complaints()} - {target for target, _, _ in made.complaints()})


def origins(known: Mapping[str, frozenset[str]], changes: Sequence[Change]) -> dict[str, frozenset[str]]:
    """For each node that came, the nodes of the first model that it stands for; known: before these changes."""
    origin = dict(known)
    for change in changes:
        stands_for = frozenset().union(*(known.get(name, frozenset({name})) for name in change.removed))
        for name in change.added:
            origin[name] = stands_for or frozenset({name})
    return origin
