"""The whole model in an older or newer opset, so that a node's operator has a revision that the target has."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, ClassVar

import onnx
import onnx_ir as ir

from deploykit import graph
from deploykit.optimizers.rewrites.cleanup import remove_unused
from deploykit.optimizers.rewrites.emitting import Names
from deploykit.optimizers.rewrites.opset_place import Place
from deploykit.optimizers.rewrites.opset_revisions import STANDARD, accepts, revision, revisions
from deploykit.optimizers.rewrites.opset_steps import DOWN, REFUSED, UP
from deploykit.optimizers.rewriting import Change, Rewrite

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Below it, indices from the end, and many other things, mean something else or nothing.
OLDEST = 11


class _ConvertOpset(Rewrite):
    """Every node in the opset in which the given ones have another revision; none where one cannot be said in it.

    revisions: how many revisions of the node back (below 0) or on.
    """

    answers: ClassVar[tuple[str, ...]] = ("opset", "revis")
    revisions: ClassVar[int]

    def applies(self, node: ir.Node, model: ir.Model) -> bool:
        """Whether there is such an opset, and the node can be said in it."""
        opset = self._opset(node, model)
        return opset is not None and _can_be_said(node, graph.opset(model), opset)

    def apply(self, model: ir.Model, nodes: Sequence[ir.Node]) -> list[Change]:
        """Converts the model to the opset that gives most of the nodes their other revision.

        Tried on a copy first: a node that has no other form leaves the model as it is.
        """
        wanted = Counter(opset for node in nodes if (opset := self._opset(node, model)) is not None)
        start = graph.opset(model)
        if not wanted or not start:
            return []
        opset = max(wanted, key=lambda opset: (wanted[opset], -abs(opset - start)))
        if _convert(model.clone(), opset) is None:
            return []
        place = _convert(model, opset)
        if place is None or graph.opset(model) != opset:
            raise RuntimeError(f"the model was to be in opset {opset}, and is in {graph.opset(model)}")
        changed = [node.name or "" for node in nodes]
        text = f"opset {start} as {opset}: {', '.join(changed)} and the rest of the model with them"
        return [Change(remove_unused(place.unread), tuple(place.added), text)]

    def _opset(self, node: ir.Node, model: ir.Model) -> int | None:
        """The nearest opset in which the node's operator is so many revisions away; None without one."""
        if node.domain not in STANDARD or node.op_type == "Constant":
            return None
        opset = graph.opset(model)
        known = revisions(node.op_type)
        now = revision(node.op_type, opset)
        if now is None or opset < OLDEST:
            return None
        at = known.index(now) + self.revisions
        if self.revisions > 0:
            return known[at] if at < len(known) else None
        # The newest opset that still has that revision.
        return known[at + 1] - 1 if at >= 0 and known[at + 1] > OLDEST else None


class OlderOpset(_ConvertOpset):
    """The newest opset in which the operator still has its revision before this one."""

    name: ClassVar[str] = "older-opset"
    title: ClassVar[str] = "converts the model to an opset with the revision of the operator before this one"
    revisions: ClassVar[int] = -1


class OlderOpsetByTwo(_ConvertOpset):
    """Two revisions back."""

    name: ClassVar[str] = "older-opset-by-two"
    title: ClassVar[str] = "converts the model to an opset with the operator as it was two revisions before"
    revisions: ClassVar[int] = -2


class OlderOpsetByThree(_ConvertOpset):
    """Three revisions back."""

    name: ClassVar[str] = "older-opset-by-three"
    title: ClassVar[str] = "converts the model to an opset with the operator as it was three revisions before"
    revisions: ClassVar[int] = -3


class NewerOpset(_ConvertOpset):
    """The first opset with the operator's next revision."""

    name: ClassVar[str] = "newer-opset"
    title: ClassVar[str] = "converts the model to an opset with the next revision of the operator"
    revisions: ClassVar[int] = 1


def _can_be_said(node: ir.Node, start: int, opset: int) -> bool:
    """Whether the operator is there on the whole way; steps say the rest when they are taken."""
    levels = range(min(start, opset), max(start, opset) + 1)
    return all(revision(node.op_type, level) is not None for level in levels)


def _convert(model: ir.Model, opset: int) -> Place | None:
    """Converts all nodes; what came and went, or None where one has no form: the model is spoilt then."""
    start = graph.opset(model)
    functions = frozenset(id(function.graph) for function in model.functions.values())
    place = Place(Names(model), functions)
    for node, begin in list(_nodes(model, start)):
        if node.domain in STANDARD and not _walk(node, begin, opset, place):
            return None
        if node.domain in STANDARD:
            node.version = None
    for imports in (model.opset_imports, *(function.opset_imports for function in model.functions.values())):
        if imports is model.opset_imports or any(domain in imports for domain in STANDARD):
            imports.pop("ai.onnx", None)
            imports[""] = opset
    needed = onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset)], ignore_unknown=True)
    model.ir_version = max(model.ir_version, needed)
    return place


def _nodes(model: ir.Model, opset: int) -> Iterator[tuple[ir.Node, int]]:
    """Every node with the opset that it is written in."""
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        yield node, node.version or opset
    for function in model.functions.values():
        own = function.opset_imports.get("", function.opset_imports.get("ai.onnx", opset))
        for node in ir.traversal.RecursiveGraphIterator(function.graph):
            yield node, node.version or own


def _walk(node: ir.Node, start: int, opset: int, place: Place) -> bool:
    """One node, revision by revision; False where it has no form."""
    known = revisions(node.op_type)
    while (now := revision(node.op_type, start)) is not None:
        at = known.index(now)
        if opset < now:
            if at == 0 or not _step(node, DOWN.get((node.op_type, now)), known[at - 1], now, place):
                return False
            start = now - 1
        elif at + 1 < len(known) and known[at + 1] <= opset:
            newer = known[at + 1]
            if not _step(node, UP.get((node.op_type, newer)), newer, now, place):
                return False
            start = newer
        else:
            return True
    return False


def _step(node: ir.Node, step: object, new: int, old: int, place: Place) -> bool:
    if callable(step) and step(place, node) == REFUSED:
        return False
    return accepts(node, new, old)
