"""Puts the branch of an If in its place when the condition is constant."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import onnx_ir as ir

from deploykit.optimizers.constants import Constants
from deploykit.optimizers.editing import bodies, kept_nodes, nodes_of, release
from deploykit.optimizers.manager import Pass

if TYPE_CHECKING:
    from collections.abc import Iterator


class InlineBranches(Pass):
    """Moves the nodes of the branch that always runs into the graph of its If; the other branch goes.

    Values and initializers of the branch get names that nothing else has. A branch that hands an outer value on
    unchanged gets an Identity, which another pass removes where it may.
    """

    def run(self, model: ir.Model) -> bool:
        """Whether a branch was moved."""
        constants, kept = Constants(model), kept_nodes(model)
        changed = False
        for node in nodes_of(model, "If"):
            condition = constants.array(node.inputs[0], 1)
            if condition is None or condition.size != 1 or not _is_attached(node, model):
                continue
            branch = node.attributes.get("then_branch" if condition.item() else "else_branch")
            left = [body for body in bodies(node) if branch is not None and body is not branch.as_graph()]
            if any(id(inner) in kept for body in left for inner in body):
                continue  # random and custom nodes stay, though they are never run
            if branch is not None and not branch.is_ref():
                _inline(node, branch.as_graph(), model)
                changed = True
        return changed


def _is_attached(node: ir.Node, model: ir.Model) -> bool:
    """False for a node in a branch that has just been dropped with its If."""
    return node.graph is not None and any(scope is node.graph for scope in model.graphs())


def _inline(node: ir.Node, branch: ir.Graph, model: ir.Model) -> None:
    owner = node.graph
    if owner is None:
        return
    taken = set(_names(model))
    results = list(branch.outputs)
    branch.outputs.clear()
    for value in list(branch.initializers.values()):
        del branch.initializers[value.name or ""]
        value.name = _unique(f"{node.name or 'If'}/{value.name}", taken)
        owner.initializers.add(value)
    nodes = list(branch)
    branch.remove(nodes)
    for inner in nodes:
        inner.name = f"{node.name}/{inner.name}" if node.name and inner.name else inner.name
        for value in inner.outputs:
            if value.name:
                value.name = _unique(f"{node.name or 'If'}/{value.name}", taken)
    owner.insert_before(node, nodes)
    mine, handed = {id(inner) for inner in nodes}, set()
    for old, result in zip(node.outputs, results, strict=True):
        if id(result.producer()) not in mine or id(result) in handed:
            copied = ir.node("Identity", [result])
            owner.insert_before(node, copied)
            result = copied.outputs[0]
        handed.add(id(result))
        result.shape = result.shape if old.shape is None else old.shape
        result.type = old.type or result.type
        name = old.name
        old.replace_all_uses_with(result, replace_graph_outputs=True)
        old.name, result.name = None, name
    for body in bodies(node):
        release(body)
    owner.remove(node, safe=True)


def _names(model: ir.Model) -> Iterator[str]:
    for scope in model.graphs():
        values = itertools.chain(scope.inputs, scope.initializers.values(), *(node.outputs for node in scope))
        yield from (value.name for value in values if value.name)


def _unique(stem: str, taken: set[str]) -> str:
    name = next(name for count in itertools.count() if (name := f"{stem}_{count}" if count else stem) not in taken)
    taken.add(name)
    return name
