"""Gemm and its third operand: fused from MatMul and Add, or added where another operator computes the product."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from deploykit.quantize.prepare import (
    add_constant,
    constant_of,
    drop_unused_initializers,
    is_constant,
    is_named,
    names_in,
)

if TYPE_CHECKING:
    from collections.abc import Collection

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


def fuse_gemm(model: ir.Model, keep: Collection[str] = ()) -> int:
    """Turns MatMul [M, K] x [K, N] and the Add of a constant [N] behind it into one Gemm; returns how many there were.

    ONNX Runtime does so itself, after Q/DQ was inserted: a bias that is float then keeps the Gemm in float, and its
    weight is dequantized in every call. The Gemm keeps the name of the MatMul, and the output that of the Add.
    keep: names of nodes and operators that stay as they are.
    """
    main = model.graph
    taken = names_in(model)
    fused = 0
    for node in list(main):
        found = _bias_behind(node)
        if found is None or is_named(node, keep) or is_named(found[0], keep):
            continue
        add, bias = found
        made = ir.node("Gemm", [node.inputs[0], node.inputs[1], bias], num_outputs=1, name=node.name)
        if bias.shape is None or len(bias.shape) != 1:
            flat = np.asarray(constant_of(bias)).reshape(-1)
            made.replace_input_with(2, add_constant(main, f"{bias.name}_flat", flat, taken))
        main.insert_before(node, [made])
        old, new = add.outputs[0], made.outputs[0]
        new.type, new.shape, name = old.type, old.shape, old.name
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        main.remove([add, node], safe=True)
        new.name = name
        fused += 1
    if fused:
        drop_unused_initializers(main)
    return fused


def _bias_behind(node: ir.Node) -> tuple[ir.Node, ir.Value] | None:
    """The Add that alone reads a MatMul of two matrices, and its constant operand, one value a column."""
    if node.op_type != "MatMul" or node.domain:
        return None
    first, second = node.inputs
    if first is None or first.shape is None or len(first.shape) != 2 or first.dtype != ir.DataType.FLOAT:
        return None
    weight, product = constant_of(second), node.outputs[0]
    uses = list(product.uses())
    if weight is None or weight.ndim != 2 or product.is_graph_output() or len(uses) != 1:
        return None
    add = uses[0].node
    if add.op_type != "Add" or add.domain or add.graph is not node.graph:
        return None
    bias = add.inputs[1 - uses[0].idx]
    array = constant_of(bias) if is_constant(bias) else None
    if bias is None or array is None or array.dtype != np.float32 or array.size != weight.shape[1]:
        return None
    return (add, bias) if array.shape[-1:] == weight.shape[1:] and array.ndim <= 2 else None
