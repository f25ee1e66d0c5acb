"""onnxruntime's transformer fusions, as a job for a worker of its own: attention, or bias and GELU, as one node.

What it writes is only a candidate, as those of the simplifiers are. The kind of transformer is read from the graph.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit import graph, io
from deploykit.graph.signature import constant_of
from deploykit.lazy import require, versions_of
from deploykit.optimizers.engines import count_nodes, graph_of, whole
from deploykit.optimizers.presentation import keep_presentation

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx_ir as ir

CONTRIB = "com.microsoft"
# What stands between the product of queries and keys and its Softmax, or between heads and that product.
_BETWEEN = {"Add", "Div", "Mul", "Where", "Cast", "Sub", "Transpose", "Identity"}
_FUSED_STANDARD = {"LayerNormalization", "Gelu"}
_DEPTH = 12


@dataclasses.dataclass(frozen=True, slots=True)
class Transformer:
    """What kind of transformer a graph is; heads and width are 0 where the graph does not tell."""

    kind: str
    heads: int
    width: int


def fuse_job(models: list[str], output: str) -> dict[str, Any]:
    """Writes the fused model with the fewest nodes at `output`; the models are forms of one model, the simplest first.

    Fusions are patterns of nodes as PyTorch exports them, so that a simplifier can take a pattern away.
    Returns model_type, fusions (operator: count), contrib, a candidate's facts. model_type None: the graph has no
    attention that is recognised; no fusions: none fits; nothing was written then.
    """
    made = [fused for path in dict.fromkeys(models) if (fused := _fuse(Path(path))) is not None]
    if not made:
        return {"model_type": None}
    kind, model, fusions = min(made, key=lambda fused: (not fused[2], count_nodes(fused[1])))
    if not fusions:
        return {"model_type": kind}
    files = graph.save(model, Path(output))
    return {
        "model_type": kind,
        "fusions": dict(sorted(fusions.items())),
        "contrib": sorted({node.op_type for node in graph.all_nodes(model) if node.domain == CONTRIB}),
        "nodes": count_nodes(model),
        "bytes": sum(io.size_of(Path(output).parent / name) for name in files),
        "files": list(files),
        "versions": versions_of("onnxruntime"),
    }


def _fuse(path: Path) -> tuple[str, ir.Model, Counter[str]] | None:
    """The kind, the fused graph and what was fused; None for a graph that is no transformer."""
    before = graph.load(path)
    found = transformer_of(before)
    if found is None:
        return None
    optimizer = require("onnxruntime.transformers.optimizer", "simplify", purpose="--fuse")
    # Level 0: the fusions alone. onnxruntime's own passes come when the model is loaded.
    fused = optimizer.optimize_model(
        whole(path), model_type=found.kind, num_heads=found.heads, hidden_size=found.width, opt_level=0
    )
    # What its own `save_model_to_file` does last.
    fused.topological_sort(is_deterministic=True)
    if CONTRIB not in [entry.domain for entry in fused.model.opset_import]:
        fused.model.opset_import.add(domain=CONTRIB, version=1)
    made = graph_of(fused.model)
    keep_presentation(made, before)
    graph.name_nodes(made)
    return found.kind, made, _operators(made) - _operators(before)


def _operators(model: ir.Model) -> Counter[str]:
    """Fused operators by name."""
    return Counter(
        node.op_type
        for node in graph.all_nodes(model)
        if node.domain == CONTRIB or (not node.domain and node.op_type in _FUSED_STANDARD)
    )


def transformer_of(model: ir.Model) -> Transformer | None:
    """The kind of transformer, by its attention; None when there is none.

    Attention is a product, a Softmax over it and a product with the Softmax. A mask that lets a position see only
    earlier ones is a decoder ("gpt2"); a convolution of an image input into patches "vit"; other encoders "bert".
    """
    attentions = list(_attentions(model))
    if not attentions:
        return None
    heads, width = next((sizes for _, scores in attentions if (sizes := _heads(scores))), (0, 0))
    if any(_is_causal(softmax) for softmax, _ in attentions):
        return Transformer("gpt2", heads, width)
    return Transformer("vit" if _has_patches(model) else "bert", heads, width)


def _attentions(model: ir.Model) -> Iterator[tuple[ir.Node, ir.Node]]:
    """Softmax and the product of queries and keys below it."""
    for node in graph.all_nodes(model):
        if node.op_type != "Softmax" or not _feeds_product(node):
            continue
        for below in _below(node):
            if below.op_type == "MatMul":
                yield node, below
                break


def _feeds_product(softmax: ir.Node) -> bool:
    """Whether the weights go to a product as its left side, perhaps through a Dropout or a cast."""
    waiting = [(softmax, 0)]
    while waiting:
        node, depth = waiting.pop()
        for use in node.outputs[0].uses():
            if use.node.op_type == "MatMul" and use.idx == 0:
                return True
            if depth < 3 and use.node.op_type in ("Dropout", "Cast", "Identity", "Where"):
                waiting.append((use.node, depth + 1))
    return False


def _below(node: ir.Node) -> Iterator[ir.Node]:
    """Producers of the node's inputs, nearest first, through what only shapes, scales or masks the values."""
    waiting = [(value, 0) for value in node.inputs]
    seen: set[int] = set()
    while waiting:
        value, depth = waiting.pop(0)
        producer = value.producer() if value is not None else None
        if producer is None or id(producer) in seen:
            continue
        seen.add(id(producer))
        yield producer
        if producer.op_type in _BETWEEN and depth < _DEPTH:
            waiting += [(value, depth + 1) for value in producer.inputs]


def _heads(scores: ir.Node) -> tuple[int, int] | None:
    """Number of heads and width, from the Reshape that splits the queries in [batch, length, heads, size]."""
    for node in _below(scores):
        if node.op_type == "Reshape" and (tail := _tail(node.inputs[1])) is not None and min(tail) > 0:
            return tail[0], tail[0] * tail[1]
    return None


def _tail(shape: ir.Value | None) -> tuple[int, int] | None:
    """The last two of four sizes, where they are numbers."""
    known = constant_of(shape)
    if known is not None:
        sizes = known.numpy().ravel()
        return (int(sizes[-2]), int(sizes[-1])) if sizes.size == 4 else None
    producer = shape.producer() if shape is not None else None
    if producer is None or producer.op_type != "Concat":
        return None
    parts = [constant_of(value) for value in producer.inputs[-2:]]
    flat = [int(size) for part in parts if part is not None for size in part.numpy().ravel()]
    return (flat[-2], flat[-1]) if parts[-1] is not None and len(flat) >= 2 else None


def _is_causal(softmax: ir.Node) -> bool:
    """Whether the scores are masked by a triangle: Trilu, or a constant whose upper part differs from its lower one."""
    return any(
        node.op_type == "Trilu" or (node.op_type != "MatMul" and any(map(_is_triangle, node.inputs)))
        for node in _below(softmax)
    )


def _is_triangle(value: ir.Value | None) -> bool:
    known = constant_of(value)
    if known is None and value is not None and (producer := value.producer()) is not None:
        if producer.op_type == "Trilu":
            return True
        if producer.op_type in ("Slice", "Cast"):  # a mask for the longest input, cut to this one
            known = constant_of(producer.inputs[0])
    if known is None or len(known.shape) < 2 or known.size < 4:
        return False
    matrix = known.numpy().reshape(-1, *known.shape[-2:])[0]
    if matrix.shape[0] != matrix.shape[1]:
        return False
    upper, lower = matrix[np.triu_indices_from(matrix, 1)], matrix[np.tril_indices_from(matrix)]
    return bool((upper == upper[0]).all() and (lower == lower[0]).all() and upper[0] != lower[0])


def _has_patches(model: ir.Model) -> bool:
    """Whether an input goes into a convolution whose windows do not overlap."""
    for value in model.graph.inputs:
        for use in value.uses():
            kernel = use.node.attributes.get("kernel_shape")
            strides = use.node.attributes.get("strides")
            if use.node.op_type == "Conv" and kernel is not None and strides is not None:
                sizes = list(kernel.as_ints())
                if sizes == list(strides.as_ints()) and min(sizes) > 1:
                    return True
    return False
