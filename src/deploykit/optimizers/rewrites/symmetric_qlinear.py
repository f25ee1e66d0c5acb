"""QLinear operators and the quantization around them, as int8 Q/DQ with zero point 0, in one step."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from deploykit import graph
from deploykit.optimizers.rewrites.cleanup import settled
from deploykit.optimizers.rewrites.qlinear_to_qdq import QLinearToQdq
from deploykit.optimizers.rewrites.quantized_groups import grid_of
from deploykit.optimizers.rewrites.symmetric_qdq import SymmetricQdq
from deploykit.optimizers.rewriting import Change, Rewrite

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir


class SymmetricQLinear(Rewrite):
    """Integers that QLinear operators share with a QuantizeLinear can only change together.

    One operator in Q/DQ form would leave its neighbours on integers of the old scale: all of the model goes at once.
    """

    name: ClassVar[str] = "symmetric-qlinear"
    title: ClassVar[str] = "writes QLinear operators and their quantization as int8 Q/DQ with zero point 0"

    def applies(self, node: ir.Node, model: ir.Model) -> bool:
        """Whether it is a QLinear operator, or quantizes for one with a zero point."""
        if QLinearToQdq().applies(node, model):
            return True
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear") or node.domain not in ("", "ai.onnx"):
            return False
        grid = grid_of(node)
        known = QLinearToQdq.builders
        return (
            grid is not None
            and not grid.is_symmetric
            and any((other.domain, other.op_type) in known for other in graph.all_nodes(model))
        )

    def apply(self, model: ir.Model, nodes: Sequence[ir.Node]) -> list[Change]:
        """Rewrites every QLinear operator of the model, and then every quantization."""
        if not any(self.applies(node, model) for node in nodes):
            return []
        qlinear, symmetric = QLinearToQdq(), SymmetricQdq()
        changes = qlinear.apply(model, [node for node in graph.all_nodes(model) if qlinear.applies(node, model)])
        if changes:
            changes += symmetric.apply(model, list(graph.all_nodes(model)))
        return settled(changes, model)
