"""Removes nodes and initializers that no output depends on."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from deploykit import graph
from deploykit.optimizers.editing import bodies, kept_nodes, nodes_of, release
from deploykit.optimizers.manager import NO_UNUSED_NODES, Pass

if TYPE_CHECKING:
    from collections.abc import Iterator

_OLD_FILES = 4


@contextlib.contextmanager
def _kept_alive(model: ir.Model) -> Iterator[None]:
    """Random and custom nodes are outputs for a moment, whether anything reads them or not."""
    kept = kept_nodes(model)
    lent = []
    for node in graph.all_nodes(model) if kept else ():
        owner, first = node.graph, next(iter(node.outputs), None)
        if id(node) in kept and isinstance(owner, ir.Graph) and first is not None and not first.is_graph_output():
            owner.outputs.append(first)
            lent.append((owner, first))
    try:
        yield
    finally:
        for owner, first in lent:
            owner.outputs.remove(first)


class RemoveDeadNodes(Pass):
    """Removes what no graph output depends on, in subgraphs too; inputs and outputs of the graph stay.

    Random and custom nodes stay, too. Files of IR version 3 list every initializer among the inputs: there it goes
    from both.
    """

    ensures = (NO_UNUSED_NODES,)

    def run(self, model: ir.Model) -> bool:
        """Whether anything was removed."""
        with _kept_alive(model):
            changed = self._removed(model)
        return self._old_inputs(model) or changed

    def _removed(self, model: ir.Model) -> bool:
        changed = False
        holders = [(node, bodies(node)) for node in nodes_of(model) if bodies(node)]
        while RemoveUnusedNodesPass()(model).modified:
            changed = True
            gone = [scope for node, scopes in holders if node.graph is None for scope in scopes if len(scope)]
            for scope in gone:
                release(scope)
            if not gone:
                break
        return changed

    def _old_inputs(self, model: ir.Model) -> bool:
        if model.ir_version >= _OLD_FILES:
            return False
        scope = model.graph
        unused = [
            value
            for value in scope.inputs
            if value.name in scope.initializers and not value.uses() and not value.is_graph_output()
        ]
        for value in unused:
            scope.inputs.remove(value)
            del scope.initializers[value.name or ""]
        return bool(unused)
