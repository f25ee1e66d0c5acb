"""MatMul and Add of matrices as one Gemm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from deploykit.optimizers.editing import (
    input_at,
    integer,
    integers,
    makes,
    once_run,
    put,
    rank_of,
    same_graph,
    standard_opset,
    static_shape,
    used_once,
)
from deploykit.optimizers.manager import INFERRED_SHAPES, Pass

if TYPE_CHECKING:
    from collections.abc import Sequence

_SINCE = 7  # Gemm broadcasts its third input by itself
_FLOATS = {ir.DataType.FLOAT, ir.DataType.DOUBLE}


class FuseGemm(Pass):
    """Add(MatMul(a, b), c) becomes Gemm(a, b, c) for matrices; a Transpose before a Gemm becomes its transA, transB."""

    requires = (INFERRED_SHAPES,)

    def run(self, model: ir.Model) -> bool:
        """Whether a node was fused."""
        if standard_opset(model) < _SINCE:
            return False
        changed = False
        for node in once_run(model, "Add"):
            changed = _add(node) or changed
        for node in once_run(model, "Gemm"):
            changed = _transposed(node) or changed
        return changed


def _add(node: ir.Node) -> bool:
    for at in (0, 1):
        product = makes(node.inputs[at], "MatMul")
        if product is None or not used_once(product.outputs[0]) or not same_graph(node, product):
            continue
        a, b, added = product.inputs[0], product.inputs[1], node.inputs[1 - at]
        if a is None or b is None or added is None or a.dtype not in _FLOATS or (rank_of(a), rank_of(b)) != (2, 2):
            continue
        if not _broadcasts(static_shape(added), [a.shape[0], b.shape[1]] if a.shape and b.shape else []):
            continue
        put(node, "Gemm", [a, b, added])
        return True
    return False


def _broadcasts(shape: tuple[int, ...] | None, result: Sequence[int | ir.SymbolicDim]) -> bool:
    """Whether a tensor of this shape can be added to the result without changing its shape."""
    if shape is None or len(shape) > len(result):
        return False
    last = result[len(result) - len(shape) :]
    return all(size == 1 or (isinstance(dim, int) and dim == size) for size, dim in zip(shape, last, strict=True))


def _transposed(node: ir.Node) -> bool:
    changed = False
    for at, flag in ((0, "transA"), (1, "transB")):
        before = makes(input_at(node, at), "Transpose")
        source = before.inputs[0] if before is not None else None
        if before is None or source is None or not used_once(before.outputs[0]) or not same_graph(node, before):
            continue
        if integers(before, "perm") not in (None, [1, 0]) or rank_of(source) != 2:
            continue
        node.replace_input_with(at, source)
        node.attributes[flag] = ir.AttrInt64(flag, 1 - integer(node, flag))
        changed = True
    return changed
