"""The search of `check --fix`: which rewrites a model's targets want, found by asking them again after each one.

No list says what a target needs. A rewrite is tried where a target refuses a node that it applies to, on a copy, all
such nodes at once; it is kept when refusals are gone, none came, and the result is proven equal.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import shutil
from collections import Counter
from typing import TYPE_CHECKING, TypeAlias

from deploykit import graph
from deploykit.errors import InvalidFileError, ModelError
from deploykit.opsupport.verdict import Status
from deploykit.optimizers.rewrites import all_rewrites
from deploykit.progress import OnProgress, Progress, silent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import onnx_ir as ir

    from deploykit.opsupport.checker import TargetSummary
    from deploykit.optimizers.rewriting import Change, Rewrite

    Ask: TypeAlias = Callable[[Path], list[TargetSummary]]
    # (before, after, the steps that lie between them): why they are not equal, "" when they are.
    Prove: TypeAlias = "Callable[[Path, Path, Sequence[Step]], str]"

# Checks of a rewritten model in one search; a model that is still refused then keeps what is left.
ASKS = 60
# What a rewrite makes may need another one, and that another one.
DEPTH = 3
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
        """What stands against the model, with the reason. A node that is refused because of another is not counted."""
        found: dict[Complaint, str] = {}
        for name, summary in self.labelled:
            for node in summary.refused:
                if not node.verdict.follows:
                    found[name, "node", node.node] = node.verdict.reason
            for finding in summary.findings:
                if finding.severity == "error" and finding.code not in _BY_OPTION:
                    found[name, finding.code, finding.tensor or ""] = finding.message
        return found

    @functools.cached_property
    def stopped(self) -> frozenset[tuple[str, str]]:
        """(target, node) for every node that a target does not take, for whatever reason, or says nothing of."""
        return frozenset(
            (label, node.node) for label, s in self.labelled for node in s.nodes if node.outcome not in _RUNS
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


@dataclasses.dataclass
class Outcome:
    """What a search found: the last model with all kept steps, and what was dropped with the reason."""

    state: State
    dropped: list[tuple[Rewrite, Sequence[str], str]] = dataclasses.field(default_factory=list)
    asked: int = 0
    exhausted: bool = False


class Search:
    """Tries rewrites on copies of a model until nothing more is gained.

    ask: what all targets say of a file. prove: compares two files. folder: for the copies.
    """

    def __init__(self, ask: Ask, prove: Prove, folder: Path, on_progress: OnProgress = silent) -> None:
        self._ask = ask
        self._prove = prove
        self._folder = folder
        self._on_progress = on_progress
        self._numbers = itertools.count(1)
        self._futile: set[tuple[str, str]] = set()  # (rewrite, node): it has been tried there
        self._outcome: Outcome

    def run(self, model: Path, summaries: Sequence[TargetSummary]) -> Outcome:
        """The best model that was found; summaries: what the targets say of the first one."""
        state = State(model, tuple(summaries))
        self._outcome = Outcome(state)
        # Every round keeps a step and lessens the complaints; that ends by itself, and at the latest at ASKS.
        while state.own and (found := self._improved(state)) is not None:
            # Names of kept nodes are those of the model from which the next round starts.
            state = dataclasses.replace(found, origin={})
            self._outcome.state = state
            _remove_others(self._folder, state.path.parent)
        return self._outcome

    def _improved(self, base: State) -> State | None:
        """The first complete improvement of a model, or else the one that leaves the fewest complaints.

        What is complained of comes first; where nothing helps there, what stands around it or has not been judged.
        """
        return self._best(base, self._candidates(base, base.own)) or self._best(base, self._around(base))

    def _best(self, base: State, candidates: Iterable[tuple[Rewrite, list[str]]]) -> State | None:
        best: State | None = None
        for rewrite, nodes in candidates:
            fresh = [name for name in nodes if (rewrite.name, name) not in self._futile]
            self._futile.update((rewrite.name, name) for name in fresh)
            found = self._proven(base, rewrite, fresh) if fresh else None
            if found is None:
                continue
            if not self._left(found, nodes):
                return found
            if best is None or len(found.complaints()) < len(best.complaints()):
                best = found
        return best

    def _proven(self, base: State, rewrite: Rewrite, nodes: Sequence[str]) -> State | None:
        """The rewrite of as many of the nodes as the targets then take, and as the comparison proves."""
        found = self._tried(base, base, rewrite, nodes, DEPTH)
        if found is None:
            return None
        steps = found.steps[len(base.steps) :]
        self._on_progress(Progress("comparing", steps[0].rewrite.name))
        wrong = self._prove(base.path, found.path, steps)
        if not wrong:
            return found
        if len(nodes) > 1:  # one of them may be to blame
            first = self._proven(base, rewrite, nodes[: len(nodes) // 2])
            return self._proven(first or base, rewrite, nodes[len(nodes) // 2 :]) or first
        self._outcome.dropped.append((rewrite, nodes, wrong))
        return None

    def _tried(self, base: State, on: State, rewrite: Rewrite, nodes: Sequence[str], depth: int) -> State | None:
        """`on` with the rewrite, and with what its result needs in turn, when that is better than `base`."""
        made = self._applied(on, rewrite, nodes)
        if made is None or (on is not base and made.signature == on.signature):
            return None  # the second rewrite of a chain has to lead somewhere
        best = made if _better(base, made) else None
        if best is not None and not self._left(made, nodes):
            return made
        if depth:
            # Nodes that nobody complained of have been rewritten for the sake of others.
            aside = not any(complaint[2] in nodes for complaint in on.own)
            came = [c for c in made.own if aside or c[1] != "node" or c[2] in made.origin]
            for other, group in self._candidates(made, came):
                deeper = self._tried(base, made, other, group, depth - 1)
                if deeper is not None and (best is None or len(deeper.complaints()) < len(best.complaints())):
                    best = deeper
                    if not self._left(best, nodes):
                        return best
        if on is not base:
            return best
        # What helps some of the nodes is done to those only, and to those that nobody has judged.
        helped = [name for name in nodes if self._helped(base, best or made, name)]
        if 0 < len(helped) < len(nodes):
            return self._tried(base, base, rewrite, helped, depth) or best
        return best

    def _helped(self, base: State, made: State, name: str) -> bool:
        before = {complaint for complaint in base.complaints() if complaint[1:] == ("node", name)}
        after = {complaint for complaint in made.complaints() if complaint[1:] == ("node", name)}
        return after < before if before else not after and any(name == other for _, other in base.unjudged)

    def _left(self, made: State, nodes: Iterable[str]) -> bool:
        """Whether a target still refuses what the nodes have become."""
        touched = set(nodes)
        return any(kind == "node" and name in touched for _, kind, name in made.complaints())

    def _candidates(self, state: State, own: Iterable[Complaint]) -> Iterator[tuple[Rewrite, list[str]]]:
        """Rewrites that apply to what is complained of, each with all those nodes.

        A complaint of a tensor is about the nodes that touch it; one that names nothing may be about any node. What a
        target has not come to judge is taken for refused where it refuses the same operator: parsers stop early.
        """
        about = list(own)
        model = _loaded(state.path)
        known = list(graph.all_nodes(model))
        alike = {(target, state.ops.get(name)) for target, kind, name in about if kind == "node"}
        refused = {name for _, kind, name in about if kind == "node"}
        refused |= {name for target, name in state.unjudged if (target, state.ops.get(name)) in alike}
        tensors = {name for _, kind, name in about if kind != "node" and name}
        placed = {target for target, kind, name in about if kind == "node" or name}
        anywhere = any(target not in placed for target, _, _ in about)
        touching = [node for node in known if tensors & _names_of(node)]
        for rewrite in all_rewrites():
            if rewrite.interface:
                suspects = touching
            else:
                suspects = [node for node in known if node.name in refused or anywhere] or touching
            names = [node.name or "" for node in suspects if rewrite.applies(node, model)]
            if names:
                yield rewrite, names

    def _around(self, state: State) -> Iterator[tuple[Rewrite, list[str]]]:
        """Rewrites that apply beside the refused nodes, or to what a refusing target has not come to judge."""
        model = _loaded(state.path)
        refused = {name for _, kind, name in state.own if kind == "node"}
        nearby = {name for _, name in state.unjudged}
        for node in graph.all_nodes(model):
            if node.name in refused:
                before = [value.producer() for value in node.inputs if value is not None]
                after = [reader for value in node.outputs for reader, _ in value.uses()]
                nearby.update(near.name or "" for near in (*before, *after) if near is not None)
        suspects = [node for node in graph.all_nodes(model) if node.name in nearby - refused]
        for rewrite in all_rewrites():
            names = [node.name or "" for node in suspects if not rewrite.interface and rewrite.applies(node, model)]
            if names:
                yield rewrite, names

    def _applied(self, on: State, rewrite: Rewrite, names: Sequence[str]) -> State | None:
        """A copy of the model with the rewrite, judged by the targets; None when nothing changed or the asks are up."""
        if self._outcome.asked >= ASKS:
            self._outcome.exhausted = True
            return None
        model = graph.name_nodes(graph.load(on.path))
        declared = _declared(model)
        graph.infer_shapes(model)
        operators = {node.name or "": node.op_type for node in graph.all_nodes(model)}
        chosen = set(names)
        nodes = [node for node in graph.all_nodes(model) if node.name in chosen]
        try:
            changes = rewrite.apply(model, nodes)
        except Exception as problem:  # a graph that a rewrite does not foresee is a line in the report
            self._outcome.dropped.append((rewrite, names, f"it failed: {type(problem).__name__}: {problem}"))
            return None
        if not changes:
            return None
        graph.name_nodes(model)
        _forget_inferred(model, declared)
        operators |= {node.name or "": node.op_type for node in graph.all_nodes(model)}
        path = self._folder / str(next(self._numbers)) / on.path.name
        path.parent.mkdir()
        graph.save(model, path)
        self._outcome.asked += 1
        self._on_progress(Progress("fixing", f"{rewrite.name}: {len(names)} nodes", self._outcome.asked))
        touched = {name: operators.get(name, "") for c in changes for name in (*c.removed, *c.added)}
        try:
            said = tuple(self._ask(path))
        except (ModelError, InvalidFileError) as problem:
            self._outcome.dropped.append((rewrite, names, f"its result is no valid model: {problem.message}"))
            return None
        step = Step(rewrite, tuple(changes), touched)
        return State(path, said, (*on.steps, step), _origins(on.origin, changes))


def _better(base: State, made: State) -> bool:
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


def _origins(known: Mapping[str, frozenset[str]], changes: Sequence[Change]) -> dict[str, frozenset[str]]:
    origin = dict(known)
    for change in changes:
        stands_for = frozenset().union(*(known.get(name, frozenset({name})) for name in change.removed))
        for name in change.added:
            origin[name] = stands_for or frozenset({name})
    return origin


def _remove_others(folder: Path, kept: Path) -> None:
    """A large model's copies fill a disk."""
    for other in folder.iterdir():
        if other != kept:
            shutil.rmtree(other)


def _loaded(path: Path) -> ir.Model:
    return graph.infer_shapes(graph.name_nodes(graph.load(path)))


def _names_of(node: ir.Node) -> set[str]:
    return {value.name or "" for value in (*node.inputs, *node.outputs) if value is not None}


def _declared(model: ir.Model) -> set[str]:
    """Names of the values inside whose type the file declares: it may be all that is known of a custom operator."""
    return {v.name or "" for node in graph.all_nodes(model) for v in node.outputs if v.type is not None}


def _forget_inferred(model: ir.Model, declared: set[str]) -> None:
    """Takes off what shape inference added: it may no longer hold, and each target infers by itself."""
    for node in graph.all_nodes(model):
        for value in node.outputs:
            if not value.is_graph_output() and value.name not in declared:
                value.shape = value.type = None
