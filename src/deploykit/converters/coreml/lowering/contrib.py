"""Fused operators that ONNX Runtime's optimizer writes into models (domain com.microsoft), by their definitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var

from deploykit.converters.coreml.lowering.context import OpContext, like, lowers
from deploykit.opsupport.verdict import Verdict, supported, unsupported

if TYPE_CHECKING:
    from deploykit.converters.coreml.lowering.node import Node

MICROSOFT = "com.microsoft"


@lowers("Gelu", since=1, domain=MICROSOFT)
def gelu(op: OpContext) -> Var:
    """x * Phi(x)."""
    return mb.gelu(x=op.input(), mode="EXACT")


@lowers("BiasGelu", since=1, domain=MICROSOFT)
def bias_gelu(op: OpContext) -> Var:
    """Gelu of x + bias."""
    return mb.gelu(x=mb.add(x=op.input(0), y=op.input(1)), mode="EXACT")


@lowers("FastGelu", since=1, domain=MICROSOFT)
def fast_gelu(op: OpContext) -> Var:
    """Gelu of x, or of x + bias, by the tanh approximation."""
    x = mb.add(x=op.input(0), y=op.input(1)) if op.has(1) else op.input(0)
    return mb.gelu(x=x, mode="TANH_APPROXIMATION")


@lowers("QuickGelu", since=1, domain=MICROSOFT)
def quick_gelu(op: OpContext) -> Var:
    """x * sigmoid(alpha * x)."""
    x = op.input()
    return mb.mul(x=x, y=mb.sigmoid(x=mb.mul(x=x, y=like(x, op.real("alpha", 1.702)))))


def _plain_batches(node: Node) -> Verdict:
    if node.flag("transBatchA") or node.flag("transBatchB"):
        return unsupported("it transposes batches", remedy="run ONNX Runtime's optimizer at a lower level")
    if (node.rank(0) or 0) < 2 or (node.rank(1) or 0) < 2:
        return unsupported("an input has no known rank of 2 or more", remedy="export with a known rank")
    return supported()


@lowers("FusedMatMul", since=1, when=_plain_batches, domain=MICROSOFT)
def fused_matmul(op: OpContext) -> Var:
    """alpha * A B, each transposed in its last two axes on request."""
    made = mb.matmul(x=op.input(0), y=op.input(1), transpose_x=op.flag("transA"), transpose_y=op.flag("transB"))
    alpha = op.real("alpha", 1.0)
    return made if alpha == 1.0 else mb.mul(x=made, y=like(made, alpha))


def _no_statistics(node: Node) -> Verdict:
    used = [
        place
        for place, value in enumerate(node.raw.outputs)
        if value.name and (value.uses() or value.is_graph_output())
    ]
    if any(place in (1, 2) for place in used):
        return unsupported("its mean or deviation is used", remedy="run ONNX Runtime's optimizer at a lower level")
    return supported()


@lowers("SkipLayerNormalization", since=1, when=_no_statistics, domain=MICROSOFT)
def skip_layer_normalization(op: OpContext) -> tuple[Var | None, ...]:
    """LayerNormalization over the last axis of x + skip (+ bias); the fourth output is that sum."""
    total = _total(op, 4)
    normal = mb.layer_norm(x=total, axes=[-1], epsilon=like(total, op.real("epsilon", 1e-12)))
    y = mb.mul(x=normal, y=op.input(2))
    return mb.add(x=y, y=op.input(3)) if op.has(3) else y, None, None, total


@lowers("SkipSimplifiedLayerNormalization", since=1, when=_no_statistics, domain=MICROSOFT)
def skip_rms_normalization(op: OpContext) -> tuple[Var | None, ...]:
    """RMS normalization over the last axis of x + skip (+ bias); the fourth output is that sum."""
    total = _total(op, 3)
    power = mb.reduce_mean(x=mb.mul(x=total, y=total), axes=[-1], keep_dims=True)
    root = mb.sqrt(x=mb.add(x=power, y=like(total, op.real("epsilon", 1e-12))))
    return mb.mul(x=mb.real_div(x=total, y=root), y=op.input(2)), None, None, total


def _total(op: OpContext, bias: int) -> Var:
    total = mb.add(x=op.input(0), y=op.input(1))
    return mb.add(x=total, y=op.input(bias)) if op.has(bias) else total
