"""Removes nodes and initializers that no output depends on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx_ir.passes.common import RemoveUnusedNodesPass

from deploykit.optimizers.manager import NO_UNUSED_NODES, Pass

if TYPE_CHECKING:
    import onnx_ir as ir


class RemoveDeadNodes(Pass):
    """Removes what no graph output depends on, in subgraphs too; inputs and outputs of the graph stay."""

    ensures = (NO_UNUSED_NODES,)

    def run(self, model: ir.Model) -> bool:
        """Whether anything was removed."""
        return bool(RemoveUnusedNodesPass()(model).modified)
