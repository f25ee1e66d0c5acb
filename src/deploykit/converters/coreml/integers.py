"""Integers of constants, which coremltools folds in 32 bits without a word when a result does not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.converters.coreml.lowering.context import INT32, Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deploykit.converters.coreml.lowering.context import OpContext

# Operators whose integers may be larger than those that they read.
_GROWING = frozenset(
    {"Abs", "Add", "Cast", "CumSum", "MatMul", "Mul", "Neg", "Pow", "Range", "ReduceL1", "ReduceProd", "ReduceSum",
     "ReduceSumSquare", "Sub", "Sum"}
)  # fmt: skip
_MOST = 1_000_000  # elements: larger constants are tables, and not computed


def check_folded(op: OpContext, made: Sequence[Any]) -> None:
    """Refused where a node of constants has an integer result beyond 32 bits, by the onnx package's evaluator."""
    if op.op not in _GROWING or op.raw.domain not in ("", "ai.onnx") or op.out_dtype() not in ("int64", "int32", None):
        return
    if not made or getattr(made[0], "val", None) is None or np.size(made[0].val) > _MOST:
        return
    if np.asarray(made[0].val).dtype.kind not in "iu":
        return
    inputs = [op.constant(position) if op.has(position) else None for position in range(op.input_count)]
    if any(array is None and op.has(position) for position, array in enumerate(inputs)):
        return
    found = _evaluated(op, inputs)
    if op.op == "Cast" and np.asarray(inputs[0]).dtype.kind == "f":  # ONNX leaves open what infinity becomes
        found = found[np.isfinite(np.asarray(inputs[0]))]
    if found.dtype.kind in "iu" and found.size and (found.min() < INT32.min or found.max() > INT32.max):
        raise Refused(
            f"its constant result is {int(found.min())}..{int(found.max())}, and Core ML computes integers in 32 bits",
            "compute it in float32, or keep the node out of the model",
        )


def _evaluated(op: OpContext, inputs: Sequence[Any]) -> Any:
    """The node's result in 64 bits."""
    import onnx_ir as ir
    from onnx.reference import ReferenceEvaluator

    node = ir.serde.serialize_node(op.raw)
    feeds = {
        name: array.astype(np.int64) if array.dtype == np.int32 else array
        for name, array in zip(node.input, inputs, strict=True)
        if array is not None
    }
    with np.errstate(all="ignore"):
        return np.asarray(ReferenceEvaluator(node, opsets={"": op.opset}).run(None, feeds)[0])
