"""Multiply-accumulates (MACs) of a graph, node by node, from shapes alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from deploykit.graph.naming import all_nodes, name_nodes
from deploykit.graph.shapes import infer_shapes, set_dims

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Dims = tuple[int, ...]

_ORIGIN = "deploykit.node"


def macs(model: ir.Model, dims: Mapping[str, int] | None = None) -> dict[str, int]:
    """MACs of one call, by node name (names as `name_nodes` gives them); nodes without any are left out.

    dims: sizes of symbolic input dimensions, 1 where not given; a size that only data decides counts as 1, and an
    operand whose rank is unknown as one application of the weights.
    A body of If, Loop or Scan counts once, a function body once for each call, under the names of its own nodes.
    Additions without a multiplication (bias, pooling, element-wise work) are not counted.
    """
    work = name_nodes(model.clone())
    if work.functions:
        for node in all_nodes(work):
            node.metadata_props[_ORIGIN] = node.name or ""
        work = InlinePass()(work).model
    infer_shapes(set_dims(work, dims or {}))
    counts: dict[str, int] = {}
    for node in ir.traversal.RecursiveGraphIterator(work.graph):
        count = node_macs(node)
        if count:
            name = node.metadata_props.get(_ORIGIN) or node.name or ""
            counts[name] = counts.get(name, 0) + count
    return counts


def node_macs(node: ir.Node) -> int:
    """MACs of one node whose inputs have shapes (unknown sizes count as 1); 0 for operators without products."""
    formula = _FORMULAS.get(node.op_type)
    return formula(node) if formula is not None else 0


def _dims(node: ir.Node, at: int) -> Dims | None:
    value = node.inputs[at] if at < len(node.inputs) else None
    return _sizes(value)


def _sizes(value: ir.Value | None) -> Dims | None:
    if value is None:
        return None
    # mypy sees the library's protocol here and its class there.
    shape: Any = value.shape
    if shape is None and value.const_value is not None:
        shape = value.const_value.shape
    return None if shape is None else tuple(dim if isinstance(dim, int) and dim >= 0 else 1 for dim in shape)


def _out(node: ir.Node) -> Dims | None:
    return _sizes(node.outputs[0]) if node.outputs else None


def _int(node: ir.Node, name: str, default: int) -> int:
    attribute = node.attributes.get(name)
    return default if attribute is None or attribute.is_ref() else attribute.as_int()


def _conv(weight: int) -> Callable[[ir.Node], int]:
    """Weight [M, C/group, *kernel]: each output element takes C/group * kernel products."""

    def count(node: ir.Node) -> int:
        w, y = _dims(node, weight), _out(node)
        if w is None:
            return 0
        return math.prod(w) if y is None else math.prod(y) * math.prod(w[1:])

    return count


def _conv_transpose(node: ir.Node) -> int:
    """Weight [C, M/group, *kernel]: each input element is multiplied with M/group * kernel weights."""
    x, w = _dims(node, 0), _dims(node, 1)
    return math.prod(x) * math.prod(w[1:]) if x is not None and w is not None else 0


def _matmul(a: int, b: int) -> Callable[[ir.Node], int]:
    """[..., M, K] x [..., K, N], leading axes broadcast; vectors as numpy.matmul takes them."""

    def count(node: ir.Node) -> int:
        left, right = _dims(node, a), _dims(node, b)
        if not left or not right:
            return math.prod(left or right or (0,))
        if _int(node, "transA", 0):
            left = (*left[:-2], left[-1], left[-2])
        if _int(node, "transB", 0):
            right = (*right[:-2], right[-1], right[-2])
        rows = left[-2] if len(left) > 1 else 1
        columns = right[-1] if len(right) > 1 else 1
        try:
            batch = np.broadcast_shapes(left[:-2], right[:-2])
        except ValueError:  # a size that was unknown counts as 1 on one side only
            batch = max(left[:-2], right[:-2], key=math.prod)
        return math.prod(batch) * rows * left[-1] * columns

    return count


def _recurrent(node: ir.Node) -> int:
    """X [S, B, I], W [D, G*H, I], R [D, G*H, H]: both matrices are applied at every step to every row."""
    x, w, r = _dims(node, 0), _dims(node, 1), _dims(node, 2)
    if w is None or r is None:
        return 0
    steps = math.prod(x[:2]) if x is not None else 1
    return steps * (math.prod(w) + math.prod(r))


def _einsum(node: ir.Node) -> int:
    """Size of the index space of the whole equation, which is the number of products of two operands."""
    equation = node.attributes["equation"].as_string().replace(" ", "")
    if "..." in equation or len(node.inputs) < 2:
        return 0
    sizes: dict[str, int] = {}
    for at, term in enumerate(equation.partition("->")[0].split(",")):
        dims = _dims(node, at)
        if dims is None or len(dims) != len(term):
            return 0
        for letter, size in zip(term, dims, strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1))
    return math.prod(sizes.values())


def _attention(node: ir.Node) -> int:
    """Q [B, Hq, Sq, D], K [B, Hk, Sk, D], V [B, Hk, Sk, Dv]: scores and the weighted sum (Attention-23).

    Inputs of rank 3 hold the heads in the last axis: the products are the same.
    """
    q, k, v = _dims(node, 0), _dims(node, 1), _dims(node, 2)
    if q is None or k is None or v is None or len(q) < 3 or len(k) != len(q) or len(v) != len(q):
        return 0
    past = _dims(node, 4)
    keys = k[-2] + (past[-2] if past is not None and len(past) == 4 else 0)
    if len(q) == 4:
        return q[0] * q[1] * q[2] * keys * (q[3] + v[3])
    heads, shared = _int(node, "q_num_heads", 1), _int(node, "kv_num_heads", 1)
    return q[0] * heads * q[1] * keys * (q[2] // heads + v[2] // shared)


def _matmul_nbits(node: ir.Node) -> int:
    x = _dims(node, 0)
    return 0 if x is None else math.prod(x[:-1]) * _int(node, "K", x[-1]) * _int(node, "N", 1)


def _packed_attention(node: ir.Node) -> int:
    """com.microsoft Attention, QAttention: X [B, S, I] with weights [I, 3*H], then scores and the weighted sum."""
    x, w = _dims(node, 0), _dims(node, 1)
    if x is None or w is None or len(x) != 3 or len(w) != 2:
        return 0
    return x[0] * x[1] * math.prod(w) + 2 * x[0] * x[1] * x[1] * (w[1] // 3)


def _any_attention(node: ir.Node) -> int:
    return _packed_attention(node) if node.domain == "com.microsoft" else _attention(node)


_FORMULAS: dict[str, Callable[[ir.Node], int]] = {
    "Conv": _conv(1),
    "ConvInteger": _conv(1),
    "DeformConv": _conv(1),
    "FusedConv": _conv(1),
    "QLinearConv": _conv(3),
    "ConvTranspose": _conv_transpose,
    "MatMul": _matmul(0, 1),
    "FusedMatMul": _matmul(0, 1),
    "MatMulInteger": _matmul(0, 1),
    "MatMulIntegerToFloat": _matmul(0, 1),
    "DynamicQuantizeMatMul": _matmul(0, 1),
    "Gemm": _matmul(0, 1),
    "FusedGemm": _matmul(0, 1),
    "QGemm": _matmul(0, 3),
    "QLinearMatMul": _matmul(0, 3),
    "MatMulNBits": _matmul_nbits,
    "LSTM": _recurrent,
    "DynamicQuantizeLSTM": _recurrent,  # both matrices transposed, of the same size
    "GRU": _recurrent,
    "RNN": _recurrent,
    "Einsum": _einsum,
    "Attention": _any_attention,
    "QAttention": _packed_attention,
    "MultiHeadAttention": _attention,
}
MAC_OPS = frozenset(_FORMULAS)
