"""The third operand of Gemm, where its product is computed by another operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

if TYPE_CHECKING:
    from deploykit.quantize.places import Rewriter


def plus_bias(rewriter: Rewriter, node: ir.Node, product: ir.Value) -> ir.Value:
    """`product` + beta * C of a Gemm, as new nodes before it; `product` itself where there is no C, or no Gemm."""
    bias = node.inputs[2] if node.op_type == "Gemm" and len(node.inputs) > 2 else None
    beta = node.attributes.get_float("beta", 1.0)
    if bias is None or beta == 0.0:
        return product
    base = node.outputs[0].name
    if beta != 1.0:
        factor = rewriter.constant(f"{node.name}_beta", ir.Tensor(np.array(beta, np.float32)), ("beta", beta))
        bias = rewriter.before(node, "Mul", [bias, factor], f"{base}_bias", like=bias)
    return rewriter.before(node, "Add", [product, bias], f"{base}_sum", like=node.outputs[0])
