"""onnxruntime's attention operators as projections, products and a Softmax."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from deploykit.optimizers.editing import input_at, rank_of
from deploykit.optimizers.rewrites.decomposition import Decomposition
from deploykit.optimizers.rewrites.emitting import size_of
from deploykit.optimizers.rewrites.normalizations import integer, is_float, number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx_ir as ir

    from deploykit.optimizers.rewrites.decomposition import Builder
    from deploykit.optimizers.rewrites.emitting import Emitter

_DOMAIN = "com.microsoft"


def _plain(node: ir.Node, *absent: int) -> bool:
    """Whether nothing but the result is asked for, all positions see all others, and these inputs are left out."""
    more = any(value.uses() or value.is_graph_output() for value in node.outputs[1:])
    changed = integer(node, "unidirectional", 0) or integer(node, "do_rotary", 0)
    return not more and not changed and all(input_at(node, at) is None for at in absent)


def _attend(
    op: Emitter, node: ir.Node, query: ir.Value, key: ir.Value, value: ir.Value, widths: Sequence[int]
) -> ir.Value:
    """softmax(Q K' * scale + bias) V by heads, for [batch, sequence, width] (Vaswani et al. 2017, section 3.2)."""
    heads = integer(node, "num_heads", 1)
    q, k, v = (
        op.transpose(op.reshape(part, [0, 0, heads, width // heads]), order)
        for part, width, order in zip(
            (query, key, value), widths, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True
        )
    )
    scale = number(node, "scale", 0.0) or 1 / math.sqrt(widths[0] // heads)
    scores = op.op("Mul", op.op("MatMul", q, k), op.like(scale, node.inputs[0]))
    bias = input_at(node, 5)
    if bias is not None:
        scores = op.op("Add", scores, bias)
    mixed = op.transpose(op.op("MatMul", op.op("Softmax", scores, axis=-1), v), [0, 2, 1, 3])
    return op.reshape(mixed, [0, 0, widths[2]])


def multi_head_attention(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """Query, key and value [batch, sequence, width] with a bias for all; without masks of keys and without past."""
    parts = [input_at(node, at) for at in range(3)]
    # Before opset 13 Softmax sees a matrix: the same over the last axis of any rank.
    if not _plain(node, 4, 6, 7) or op.opset < 13 or not is_float(parts[0]):
        return None
    if any(rank_of(part) != 3 for part in parts):
        return None
    values = [part for part in parts if part is not None]
    widths = [size for part in values if (size := size_of(part, 2)) is not None]
    heads = integer(node, "num_heads", 0)
    if len(widths) != 3 or heads < 1 or any(width % heads for width in widths):
        return None
    bias = input_at(node, 3)
    if bias is not None:
        values = [op.op("Add", part, own) for part, own in zip(values, op.split(bias, 0, widths), strict=True)]
    return [_attend(op, node, values[0], values[1], values[2], widths)]


def attention(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """Input [batch, sequence, width], one weight for query, key and value; without mask and without past."""
    x, weight, bias = node.inputs[0], input_at(node, 1), input_at(node, 2)
    if not _plain(node, 3, 4, 6) or op.opset < 13 or x is None or weight is None or not is_float(x) or rank_of(x) != 3:
        return None
    total, heads = size_of(weight, 1), integer(node, "num_heads", 0)
    if total is None or heads < 1:
        return None
    widths = list(node.attributes.get_ints("qkv_hidden_sizes", [total // 3] * 3))
    if sum(widths) != total or any(width % heads for width in widths):
        return None
    projected = op.op("MatMul", x, weight)
    projected = projected if bias is None else op.op("Add", projected, bias)
    query, key, value = op.split(projected, 2, widths)
    return [_attend(op, node, query, key, value, widths)]


class DecomposeAttention(Decomposition):
    """Attention and MultiHeadAttention of onnxruntime, where every position sees every other."""

    name: ClassVar[str] = "decompose-attention"
    title: ClassVar[str] = "writes onnxruntime's attention as MatMul, Softmax and MatMul"
    builders: ClassVar[Mapping[tuple[str, str], Builder]] = {
        (_DOMAIN, "Attention"): attention,
        (_DOMAIN, "MultiHeadAttention"): multi_head_attention,
    }
