"""What a file declares of shapes inside, set aside while passes look at what follows from the inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx

from deploykit import graph
from deploykit.optimizers.editing import STANDARD

if TYPE_CHECKING:
    import onnx_ir as ir


class DeclaredShapes:
    """The shapes that a model declares for its outputs, and for values inside.

    They may be wrong and often are: a batch made dynamic by hand leaves the old sizes inside, and a name may stand for
    two sizes. Passes believe the inputs and the operators only; what an operator without a definition makes is kept.
    """

    def __init__(self, model: ir.Model) -> None:
        """Takes them away, until `give_back`."""
        self._outputs = [value.shape for value in model.graph.outputs]
        for node in graph.all_nodes(model):
            if node.domain in STANDARD and onnx.defs.has(node.op_type):
                for value in node.outputs:
                    value.shape = None

    def give_back(self, model: ir.Model) -> None:
        """Declares the outputs as before: their names and order have not changed."""
        for value, shape in zip(model.graph.outputs, self._outputs, strict=True):
            if value.producer() is not None:
                value.shape = shape
