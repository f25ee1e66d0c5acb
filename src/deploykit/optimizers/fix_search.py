"""The search of `check --fix`: which rewrites a model's targets want, found by asking them again after each one.

No list says what a target needs. A rewrite is tried where a target refuses a node that it applies to, on a copy, all
such nodes at once; it is kept when refusals are gone, none came, and the result is proven equal.
"""

from __future__ import annotations

import dataclasses
import itertools
import shutil
from typing import TYPE_CHECKING, TypeAlias

from deploykit import graph
from deploykit.errors import InvalidFileError, ModelError
from deploykit.optimizers.fix_state import State, Step, better, leads_nowhere, origins, worth_its_interface
from deploykit.optimizers.rewrites import all_rewrites
from deploykit.optimizers.rewrites.unique_names import named
from deploykit.progress import OnProgress, Progress, silent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    import onnx_ir as ir

    from deploykit.opsupport.checker import TargetSummary
    from deploykit.optimizers.fix_state import Complaint
    from deploykit.optimizers.rewriting import Rewrite

    Ask: TypeAlias = Callable[[Path], list[TargetSummary]]
    # (before, after, the steps that lie between them): why they are not equal, "" when they are.
    Prove: TypeAlias = Callable[[Path, Path, Sequence[Step]], str]

# Checks of a rewritten model in one search; a model that is still refused then keeps what is left.
ASKS = 60
# What a rewrite makes may need another one, and that another one.
DEPTH = 3


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
        self._made: dict[tuple[Path, str, tuple[str, ...]], State | None] = {}
        self._proofs: dict[tuple[Path, Path], str] = {}
        self._retyping = False  # inputs and outputs may be retyped although no target names them
        self._futile: set[tuple[str, str, bool]] = set()  # (rewrite, node, retyping): it has been tried
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
            self._made.clear()
            self._proofs.clear()
            _remove_others(self._folder, state.path.parent)
        return self._outcome

    def _improved(self, base: State) -> State | None:
        """The first complete improvement of a model, or else the one that leaves the fewest complaints.

        What is complained of comes first; where nothing helps there, what stands around it or has not been judged.
        """
        found = self._best(base, self._candidates(base, base.own)) or self._best(base, self._around(base))
        if found is None and self._interface_matters(base):
            self._retyping = True
            found = self._best(base, self._candidates(base, base.own))
            self._retyping = False
        return found

    def _interface_matters(self, state: State) -> bool:
        """Whether another dtype of inputs or outputs is possible, which is the last resort."""
        model = _loaded(state.path)
        ends = [rewrite for rewrite in all_rewrites() if rewrite.interface]
        return any(rewrite.applies(node, model) for node in graph.all_nodes(model) for rewrite in ends)

    def _best(self, base: State, candidates: Iterable[tuple[Rewrite, list[str]]]) -> State | None:
        """The first rewrite that is enough by itself, or else with what its result needs in turn."""
        plan = list(candidates)
        best: State | None = None
        postponed: set[tuple[str, str, bool]] = set()  # until something else is solved
        for depth in (0, DEPTH):
            for rewrite, nodes in plan:
                fresh = [name for name in nodes if (rewrite.name, name, self._retyping) not in self._futile]
                found = self._proven(base, rewrite, fresh, depth) if fresh else None
                if found is not None and not worth_its_interface(base, found):
                    postponed.update((rewrite.name, name, self._retyping) for name in fresh)
                    found = None
                if found is not None and not self._left(found, nodes):
                    return found
                if found is not None and (best is None or len(found.complaints()) < len(best.complaints())):
                    best = found
        tried = {(rewrite.name, name, self._retyping) for rewrite, nodes in plan for name in nodes}
        self._futile |= tried - postponed
        return best

    def _proven(self, base: State, rewrite: Rewrite, nodes: Sequence[str], depth: int) -> State | None:
        """The rewrite of as many of the nodes as the targets then take, and as the comparison proves."""
        found = self._tried(base, base, rewrite, nodes, depth)
        if found is None:
            return None
        steps = found.steps[len(base.steps) :]
        if (base.path, found.path) not in self._proofs:
            self._on_progress(Progress("comparing", steps[0].rewrite.name))
            self._proofs[base.path, found.path] = self._prove(base.path, found.path, steps)
        wrong = self._proofs[base.path, found.path]
        if not wrong:
            return found
        if len(nodes) > 1:  # one of them may be to blame
            first = self._proven(base, rewrite, nodes[: len(nodes) // 2], depth)
            return self._proven(first or base, rewrite, nodes[len(nodes) // 2 :], depth) or first
        if steps[0].rewrite is rewrite and len(steps) == 1:
            self._futile.add((rewrite.name, nodes[0], self._retyping))
        if (rewrite, nodes, wrong) not in self._outcome.dropped:
            self._outcome.dropped.append((rewrite, nodes, wrong))
        return None

    def _tried(self, base: State, on: State, rewrite: Rewrite, nodes: Sequence[str], depth: int) -> State | None:
        """`on` with the rewrite, and with what its result needs in turn, when that is better than `base`."""
        made = self._applied(on, rewrite, nodes)
        if made is None or (on is not base and leads_nowhere(on, made)):
            return None
        best = made if better(base, made) else None
        if best is not None and not self._left(made, nodes):
            return made
        if depth:
            for other, group in self._candidates(made, self._in_turn(on, made, nodes)):
                # Only what a rewrite has made goes deeper; what was there before is as much at the top.
                left = depth - any(name in made.origin for name in group)
                deeper = self._tried(base, made, other, group, left)
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

    def _in_turn(self, on: State, made: State, nodes: Sequence[str]) -> list[Complaint]:
        """What has to be solved before a rewrite can be judged.

        That is what is said of the nodes that came; all that stands against a target which has not come to judge them;
        and everything, where the rewritten nodes were not complained of but done for the sake of others.
        """
        aside = not any(complaint[2] in nodes for complaint in on.own)
        waiting = {target for target, name in made.unjudged if name in made.origin}
        return [c for c in made.own if aside or c[1] != "node" or c[2] in made.origin or c[0] in waiting]

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
        reasons = {name: state.own[target, kind, name] for target, kind, name in about if kind == "node"}
        whole = " ".join(state.own[complaint] for complaint in about if complaint[1] != "node")
        later: list[tuple[Rewrite, list[str]]] = []
        for rewrite in all_rewrites():
            if rewrite.interface and not self._retyping:
                suspects = touching
            else:
                suspects = [node for node in known if node.name in refused or anywhere] or touching
            names = [node.name or "" for node in suspects if rewrite.applies(node, model)]
            called = [name for name in names if rewrite.is_called_for(reasons.get(name, whole))]
            if called:
                yield rewrite, called
            elif names:
                later.append((rewrite, names))
        yield from later

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
            if rewrite.interface or rewrite.answers:
                continue
            names = [node.name or "" for node in suspects if rewrite.applies(node, model)]
            if names:
                yield rewrite, names

    def _applied(self, on: State, rewrite: Rewrite, names: Sequence[str]) -> State | None:
        """A copy of the model with the rewrite, judged by the targets; None when nothing changed or the asks are up."""
        key = (on.path, rewrite.name, tuple(names))
        if key not in self._made:
            self._made[key] = self._make(on, rewrite, names)
        return self._made[key]

    def _make(self, on: State, rewrite: Rewrite, names: Sequence[str]) -> State | None:
        if self._outcome.asked >= ASKS:
            self._outcome.exhausted = True
            return None
        model = named(graph.load(on.path))
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
        except RuntimeError as problem:  # our own code failed in a target's worker on a model that nobody gave it
            last = str(problem).strip().splitlines()[-1]
            self._outcome.dropped.append((rewrite, names, f"a target could not be asked about its result: {last}"))
            return None
        step = Step(rewrite, tuple(changes), touched)
        return State(path, said, (*on.steps, step), origins(on.origin, changes))


def _remove_others(folder: Path, kept: Path) -> None:
    """A large model's copies fill a disk."""
    for other in folder.iterdir():
        if other != kept:
            shutil.rmtree(other)


def _loaded(path: Path) -> ir.Model:
    return graph.infer_shapes(named(graph.load(path)))


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
