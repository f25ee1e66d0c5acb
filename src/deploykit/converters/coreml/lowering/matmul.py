"""Matrix products."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var

from deploykit.converters.coreml.lowering.context import OpContext, like, lowers
from deploykit.converters.coreml.lowering.quantization import transposed_weight
from deploykit.opsupport.verdict import Verdict, supported, unknown, unsupported

if TYPE_CHECKING:
    from deploykit.converters.coreml.lowering.node import Node


def _float_product(node: Node) -> Verdict:
    if node.is_integer(0):
        return unsupported(f"Core ML computes {node.op} in float only", remedy="cast to float32 before it")
    if node.rank(0) is None or node.rank(1) is None:
        return unknown("the rank of an input is unknown", remedy="export with a known rank")
    return supported()


@lowers("MatMul", since=(1, 9, 13), when=_float_product)
def matmul(op: OpContext) -> Var:
    """Numpy's matmul; vectors become matrices and lose the added dimension again."""
    x, y = op.input(0), op.input(1)
    left, right = x.rank == 1, y.rank == 1
    x = mb.expand_dims(x=x, axes=[0]) if left else x
    y = mb.expand_dims(x=y, axes=[1]) if right else y
    product = mb.matmul(x=x, y=y, transpose_x=False, transpose_y=False)
    axes = ([product.rank - 2] if left else []) + ([product.rank - 1] if right else [])
    return mb.squeeze(x=product, axes=axes) if axes else product


@lowers("Gemm", since=(1, 6, 7, 9, 11, 13), when=_float_product)
def gemm(op: OpContext) -> Var:
    """alpha * A' B' + beta * C. The usual form (a constant B, a constant C by column) becomes `linear`."""
    a = op.input(0)
    alpha, beta = op.real("alpha", 1.0), op.real("beta", 1.0)
    trans_a, trans_b = op.flag("transA"), op.flag("transB")
    weight = None if trans_a or alpha != 1.0 else transposed_weight(op, 1, already=trans_b)
    columns = int(op.input(1).shape[0 if trans_b else 1]) if weight is not None else 0
    c = op.constant(2) if op.has(2) else None
    if weight is not None:
        by_column = c is not None and c.ndim == 1 and c.shape == (columns,)
        arguments = {"bias": (c * c.dtype.type(beta)).astype(c.dtype)} if by_column and c is not None else {}
        product = mb.linear(x=a, weight=weight, **arguments)
        if by_column:
            return product
    else:
        product = mb.matmul(x=a, y=op.input(1), transpose_x=trans_a, transpose_y=trans_b)
        if alpha != 1.0:
            product = mb.mul(x=product, y=like(product, alpha))
    if not op.has(2) or beta == 0.0:
        return product
    added = op.input(2)
    return mb.add(x=product, y=added if beta == 1.0 else mb.mul(x=added, y=like(product, beta)))
