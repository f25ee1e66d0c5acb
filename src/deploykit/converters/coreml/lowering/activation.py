"""Activation functions that are more than one MIL operator, or carry parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var

from deploykit.converters.coreml.lowering.context import OpContext, is_fixed, like, lowers, positive_axis
from deploykit.opsupport.verdict import Verdict, supported, unknown, unsupported

if TYPE_CHECKING:
    from deploykit.converters.coreml.lowering.node import Node


@lowers("LeakyRelu", since=(6, 16))
def leaky_relu(op: OpContext) -> Var:
    """x where x >= 0, alpha * x elsewhere."""
    x = op.input()
    return mb.leaky_relu(x=x, alpha=like(x, op.real("alpha", 0.01)))


@lowers("HardSigmoid", since=(6, 22))
def hard_sigmoid(op: OpContext) -> Var:
    """max(0, min(1, alpha * x + beta))."""
    x = op.input()
    return mb.sigmoid_hard(x=x, alpha=like(x, op.real("alpha", 0.2)), beta=like(x, op.real("beta", 0.5)))


@lowers("HardSwish", since=(14, 22))
def hard_swish(op: OpContext) -> Var:
    """x * HardSigmoid(x) with alpha = 1/6 and beta = 0.5 (spec, HardSwish-14)."""
    x = op.input()
    return mb.mul(x=x, y=mb.sigmoid_hard(x=x, alpha=like(x, 1 / 6), beta=like(x, 0.5)))


@lowers("Gelu", since=20)
def gelu(op: OpContext) -> Var:
    """x * Phi(x), exact or by the tanh approximation."""
    mode = "TANH_APPROXIMATION" if op.text("approximate", "none") == "tanh" else "EXACT"
    return mb.gelu(x=op.input(), mode=mode)


@lowers("Elu", since=(6, 22))
def elu(op: OpContext) -> Var:
    """x where x > 0, alpha * (exp(x) - 1) elsewhere."""
    x = op.input()
    return mb.elu(x=x, alpha=like(x, op.real("alpha", 1.0)))


@lowers("Selu", since=(6, 22))
def selu(op: OpContext) -> Var:
    """gamma * Elu(x, alpha), with the constants of the spec as defaults."""
    x = op.input()
    alpha = op.real("alpha", 1.67326319217681884765625)
    gamma = op.real("gamma", 1.05070102214813232421875)
    return mb.mul(x=mb.elu(x=x, alpha=like(x, alpha)), y=like(x, gamma))


@lowers("Celu", since=(12, 28))
def celu(op: OpContext) -> Var:
    """max(0, x) + min(0, alpha * (exp(x / alpha) - 1)), which is alpha * Elu(x / alpha)."""
    x = op.input()
    alpha = op.real("alpha", 1.0)
    return mb.mul(x=mb.elu(x=mb.mul(x=x, y=like(x, 1 / alpha)), alpha=like(x, 1.0)), y=like(x, alpha))


@lowers("PRelu", since=(7, 9, 16))
def prelu(op: OpContext) -> Var:
    """x where x >= 0, slope * x elsewhere; the slope broadcasts to x."""
    x, slope = op.input(0), op.input(1)
    negative = mb.minimum(x=x, y=like(x, 0))
    return mb.add(x=mb.relu(x=x), y=mb.mul(x=negative, y=slope))


@lowers("ThresholdedRelu", since=(10, 22))
def thresholded_relu(op: OpContext) -> Var:
    """x where x > alpha, 0 elsewhere; MIL's own keeps x at the threshold, so it is a select."""
    x = op.input()
    keeps = mb.greater(x=x, y=like(x, op.real("alpha", 1.0)))
    return mb.select(cond=keeps, a=x, b=mb.mul(x=x, y=like(x, 0)))


@lowers("Mish", since=(18, 22))
def mish(op: OpContext) -> Var:
    """x * tanh(softplus(x))."""
    x = op.input()
    return mb.mul(x=x, y=mb.tanh(x=mb.softplus(x=x)))


@lowers("Shrink", since=9)
def shrink(op: OpContext) -> Var:
    """x + bias below -lambd, x - bias above lambd, 0 between."""
    x, limit, bias = op.input(), op.real("lambd", 0.5), op.real("bias", 0.0)
    low = mb.select(cond=mb.less(x=x, y=like(x, -limit)), a=mb.add(x=x, y=like(x, bias)), b=mb.mul(x=x, y=like(x, 0)))
    return mb.select(cond=mb.greater(x=x, y=like(x, limit)), a=mb.sub(x=x, y=like(x, bias)), b=low)


@lowers("Swish", since=24)
def swish(op: OpContext) -> Var:
    """x * sigmoid(alpha * x)."""
    x = op.input()
    return mb.mul(x=x, y=mb.sigmoid(x=mb.mul(x=x, y=like(x, op.real("alpha", 1.0)))))


def _softmax_form(node: Node) -> Verdict:
    """Before opset 13 the input is flattened to 2-D at the axis (default 1) first."""
    if node.opset >= 13:
        return supported()
    shape = node.shape(0)
    if shape is None:
        return unknown("the rank of its input is unknown", remedy="export with a known rank")
    axis = positive_axis(node.integer("axis", 1), len(shape))
    if axis != len(shape) - 1 and not all(isinstance(size, int) for size in shape[axis:]):
        return unsupported(
            f"before opset 13 {node.op} runs over all axes from {axis} on, and their sizes vary here",
            remedy="export with opset 13 or newer",
        )
    return supported()


@lowers("Softmax", since=(1, 11, 13), when=_softmax_form)
def softmax(op: OpContext) -> Var:
    """exp(x) / sum(exp(x)) along the axis."""
    x = op.input()
    if op.opset >= 13:
        return mb.softmax(x=x, axis=op.integer("axis", -1))
    return _over_rest(op, x, lambda flat: mb.softmax(x=flat, axis=-1))


@lowers("LogSoftmax", since=(1, 11, 13), when=_softmax_form)
def log_softmax(op: OpContext) -> Var:
    """x - max - log(sum(exp(x - max))) along the axis: no overflow."""
    x = op.input()
    if op.opset >= 13:
        return _log_softmax(x, op.integer("axis", -1))
    return _over_rest(op, x, lambda flat: _log_softmax(flat, -1))


def _log_softmax(x: Var, axis: int) -> Var:
    shifted = mb.sub(x=x, y=mb.reduce_max(x=x, axes=[axis], keep_dims=True))
    total = mb.reduce_sum(x=mb.exp(x=shifted), axes=[axis], keep_dims=True)
    return mb.sub(x=shifted, y=mb.log(x=total, epsilon=like(x, 0)))


def _over_rest(op: OpContext, x: Var, build: object) -> Var:
    """Applies `build` over all axes from the attribute's on, as opsets below 13 define it."""
    axis = positive_axis(op.integer("axis", 1), x.rank)
    if axis == x.rank - 1:
        return build(x)  # type: ignore[operator]
    rest = [int(size) for size in x.shape[axis:]]
    flat = mb.reshape(x=x, shape=[-1, int(np.prod(rest))])
    done = build(flat)  # type: ignore[operator]
    if is_fixed(x):
        return mb.reshape(x=done, shape=[int(size) for size in x.shape])
    return mb.reshape(x=done, shape=mb.shape(x=x))
