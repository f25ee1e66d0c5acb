"""Rewrites that work on one node at a time: a function for each operator says what stands for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import onnx_ir as ir

from deploykit import graph
from deploykit.optimizers.rewrites.emitting import Emitter, Names
from deploykit.optimizers.rewriting import Change, Rewrite

# What takes the place of the node's outputs; None where it cannot be expressed.
Builder = Callable[[Emitter, ir.Node], Sequence[ir.Value] | None]


class Decomposition(Rewrite):
    """Puts other nodes in the place of one.

    builders: what stands for a node, by domain ("" for ONNX's own) and operator. They ask what they need to know of the
    node themselves, and give None where it is not so: whether a node can be expressed and how is one question.
    """

    builders: ClassVar[Mapping[tuple[str, str], Builder]]

    def applies(self, node: ir.Node, model: ir.Model) -> bool:
        """Whether a builder has an answer. Nodes of model-local functions have none: their calls are inlined first."""
        builder = self.builder(node)
        if builder is None or node.graph is None or in_function(node, model):
            return False
        emitter = Emitter(node, model)
        found = builder(emitter, node)
        emitter.discard()
        return found is not None

    def apply(self, model: ir.Model, nodes: Sequence[ir.Node]) -> list[Change]:
        """Replaces each node that a builder has an answer for."""
        names = Names(model)
        wanted = {id(node) for node in nodes}
        changes = []
        # Bodies before the nodes that own them: what takes an owner's place may be a copy of its body.
        for node in reversed(list(ir.traversal.RecursiveGraphIterator(model.graph))):
            if id(node) not in wanted:
                continue
            builder = self.builder(node)
            if builder is None or node.graph is None:
                continue
            emitter = Emitter(node, model)
            outputs = builder(emitter, node)
            if outputs is None:
                emitter.discard()
                continue
            name = node.name or node.op_type
            added = emitter.commit(outputs, names)
            changes.append(Change((name,), added, self.sentence(node, emitter.nodes)))
        # Copies of what was made in a body have names of their own.
        left = {node.name for node in graph.all_nodes(model)}
        return [
            dataclasses.replace(change, added=tuple(name for name in change.added if name in left))
            for change in reversed(changes)
        ]

    def builder(self, node: ir.Node) -> Builder | None:
        """The function that has an answer for this operator."""
        return self.builders.get(("" if node.domain == "ai.onnx" else node.domain, node.op_type))

    def sentence(self, node: ir.Node, made: Sequence[ir.Node]) -> str:
        """What was done to one node, for people."""
        return f"{node.op_type} as {', '.join(dict.fromkeys(new.op_type for new in made))}"


def in_function(node: ir.Node, model: ir.Model) -> bool:
    """Whether the node is part of a model-local function, at any depth."""
    return any(inner is node for function in model.functions.values() for inner in function.all_nodes())
