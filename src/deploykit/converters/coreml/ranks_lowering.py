"""Operators on tensors of more than five dimensions, lowered on views of fewer.

The elements stay where they are: a Reshape or an Unsqueeze to rank 6 costs nothing, an operator that treats elements
alike works on one long axis, one that works along an axis on three. Each is lowered by its own rule, on the view.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from deploykit.converters.coreml import ranks_math, ranks_shapes  # noqa: F401 - they fill the table
from deploykit.converters.coreml.lowering.context import OpContext, Refused
from deploykit.converters.coreml.ranks import MOST, Wide
from deploykit.converters.coreml.ranks_values import narrow
from deploykit.converters.coreml.ranks_views import HANDLERS

if TYPE_CHECKING:
    from coremltools.converters.mil.mil import Var

    from deploykit.converters.coreml.lowering.node import Node

_DOMAINS = frozenset({"", "ai.onnx", "com.microsoft"})


def takes(node: Node) -> bool:
    """Whether the operator is lowered for tensors of any rank."""
    return node.raw.domain in _DOMAINS and node.op in HANDLERS


def is_wide(op: OpContext) -> bool:
    """Whether a tensor of the node has more dimensions than Core ML."""
    for value in op.raw.inputs:
        if value is not None and (isinstance(op.environment.held(value), Wide) or len(value.shape or ()) > MOST):
            return True
    return any(len(value.shape or ()) > MOST for value in op.raw.outputs) or _made_rank(op) > MOST


def _made_rank(op: OpContext) -> int:
    """The rank of what a node makes, where inference may not have said it; 0 for other operators."""
    if op.op in ("Reshape", "Expand") and op.has(1):
        sizes = op.input(1).shape
        return int(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], (int, np.integer)) else 0
    if op.op == "Unsqueeze":
        return int(op.input(0).rank) + len(op.integers("axes", 1) or ())
    return 0


def lower(op: OpContext) -> tuple[Var | Wide, ...]:
    """The node's outputs: variables, or tensors of more than five dimensions. Refused, with its reason."""
    if not takes(op):
        raise Refused(
            f"it works on a tensor of more than {MOST} dimensions, and Core ML stops there",
            "merge dimensions around it: a Reshape before and one behind",
        )
    return tuple(narrow(made) for made in HANDLERS[op.op](op))
