"""Arithmetic, comparisons, elementary functions and activations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from deploykit.converters.coreml.simulator.table import Array, Undocumented, evaluates, flag, text, wide

_BINARY: dict[str, Any] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
}
_UNARY: dict[str, Any] = {
    "abs": np.abs,
    "acos": np.arccos,
    "asin": np.arcsin,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "ceil": np.ceil,
    "cos": np.cos,
    "cosh": np.cosh,
    "exp": np.exp,
    "exp2": np.exp2,
    "floor": np.floor,
    "logical_not": np.logical_not,
    "round": np.rint,
    "sign": np.sign,
    "sin": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "square": np.square,
    "tan": np.tan,
    "tanh": np.tanh,
    "identity": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "softplus": lambda x: np.logaddexp(0, wide(x)),
    "softsign": lambda x: x / (1 + np.abs(x)),
}


def _register() -> None:
    """The tables above: what differs is the numpy function only."""

    def binary(function: Any) -> Any:
        return lambda x, y: function(x, y)

    def unary(function: Any) -> Any:
        return lambda x: function(x)

    for name, function in _BINARY.items():
        evaluates(name)(binary(function))
    for name, function in _UNARY.items():
        evaluates(name)(unary(function))


_register()


def _whole(x: Array, y: Array) -> bool:
    """Whether it is a division of integers, whose divisors must not be 0."""
    integer = x.dtype.kind in "iu"
    if integer and not np.all(y):
        raise Undocumented("an integer divided by 0")
    return integer


@evaluates("floor_div")
def floor_div(x: Array, y: Array) -> Any:
    """x / y, rounded towards negative infinity."""
    _whole(x, y)
    return np.floor_divide(x, y)


@evaluates("mod")
def mod(x: Array, y: Array) -> Any:
    """x % y, with the sign of y (`operator.mod`)."""
    _whole(x, y)
    return np.mod(x, y)


@evaluates("real_div")
def real_div(x: Array, y: Array) -> Any:
    """x / y; of integers, whose quotient is typed as an integer, only what has no remainder."""
    if not _whole(x, y):
        return np.true_divide(x, y)
    if np.any(np.mod(x, y)):
        raise Undocumented("a quotient of integers that is none: how it rounds")
    return np.floor_divide(x, y)


@evaluates("pow")
def power(x: Array, y: Array) -> Any:
    """x ** y; integers through floats, and none to a negative power, which has no integer result."""
    if x.dtype.kind in "iu" and np.any(np.asarray(y) < 0):
        raise Undocumented("an integer to a negative power")
    return np.power(wide(x).astype(np.float64), wide(y).astype(np.float64))


@evaluates("sigmoid")
def sigmoid(x: Array) -> Any:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-wide(x)))


@evaluates("silu")
def silu(x: Array) -> Any:
    """x * sigmoid(x)."""
    return x / (1 + np.exp(-wide(x)))


def erf_of(x: Array) -> Any:
    """The error function, element by element."""
    flat = np.fromiter(map(math.erf, wide(x).ravel().tolist()), np.float64, x.size)
    return flat.reshape(x.shape)


@evaluates("erf")
def erf(x: Array) -> Any:
    """The error function."""
    return erf_of(x)


@evaluates("gelu")
def gelu(x: Array, mode: Any = "EXACT") -> Any:
    """x * Phi(x), exact, by tanh, or by a sigmoid."""
    kind, v = text(mode), wide(x)
    if kind == "EXACT":
        made = 0.5 * v * (1 + erf_of(v / math.sqrt(2)))
    elif kind == "TANH_APPROXIMATION":
        made = 0.5 * v * (1 + np.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))
    else:
        made = v / (1 + np.exp(-1.702 * v))
    return made


@evaluates("log")
def log(x: Array, epsilon: Any = 1e-45) -> Any:
    """log(x + epsilon)."""
    return np.log(wide(x) + float(epsilon))


@evaluates("rsqrt")
def rsqrt(x: Array, epsilon: Any = 1e-12) -> Any:
    """1 / sqrt(x + epsilon)."""
    return 1 / np.sqrt(wide(x) + float(epsilon))


@evaluates("inverse")
def inverse(x: Array, epsilon: Any = 1e-4) -> Any:
    """1 / (x + epsilon)."""
    return 1 / (wide(x) + float(epsilon))


@evaluates("clip")
def clip(x: Array, alpha: Any, beta: Any) -> Any:
    """min(max(x, alpha), beta)."""
    return np.minimum(np.maximum(x, alpha), beta)


@evaluates("threshold")
def threshold(x: Array, alpha: Any) -> Any:
    """max(x, alpha)."""
    return np.maximum(x, alpha)


@evaluates("thresholded_relu")
def thresholded_relu(x: Array, alpha: Any = 1.0) -> Any:
    """x where x >= alpha, 0 elsewhere."""
    return np.where(x >= alpha, x, 0)


@evaluates("leaky_relu")
def leaky_relu(x: Array, alpha: Any = 0.01) -> Any:
    """x where x >= 0, alpha * x elsewhere."""
    return np.where(x >= 0, x, x * alpha)


@evaluates("prelu")
def prelu(x: Array, alpha: Array) -> Any:
    """leaky_relu with an alpha for each channel."""
    return np.where(x >= 0, x, x * _channel(alpha, x))


@evaluates("elu")
def elu(x: Array, alpha: Any = 1.0) -> Any:
    """x where x > 0, alpha * (exp(x) - 1) elsewhere."""
    return np.where(x > 0, x, float(alpha) * np.expm1(np.minimum(wide(x), 0)))


@evaluates("clamped_relu")
def clamped_relu(x: Array, alpha: Any = 1.0, beta: Any = 1.0) -> Any:
    """min(beta, x) where x >= 0, min(beta, alpha * x) elsewhere."""
    return np.minimum(beta, np.where(x >= 0, x, x * alpha))


@evaluates("linear_activation")
def linear_activation(x: Array, alpha: Any, beta: Any = 0.0) -> Any:
    """alpha * x + beta."""
    return x * alpha + beta


@evaluates("scaled_tanh")
def scaled_tanh(x: Array, alpha: Any = 1.0, beta: Any = 1.0) -> Any:
    """alpha * tanh(beta * x)."""
    return alpha * np.tanh(beta * x)


@evaluates("sigmoid_hard")
def sigmoid_hard(x: Array, alpha: Any = 0.2, beta: Any = 0.5) -> Any:
    """min(max(alpha * x + beta, 0), 1)."""
    return np.clip(alpha * x + beta, 0, 1)


@evaluates("softplus_parametric")
def softplus_parametric(x: Array, alpha: Array, beta: Array) -> Any:
    """alpha * log(1 + exp(beta * x)) by channel."""
    return _channel(alpha, x) * np.logaddexp(0, wide(_channel(beta, x) * x))


@evaluates("select")
def select(cond: Array, a: Array, b: Array) -> Any:
    """a where cond, b elsewhere; broadcast."""
    return np.where(cond, a, b)


@evaluates("cast")
def cast(x: Array, dtype: Any) -> Any:
    """Another type; floats become integers towards zero, and true where they are not 0."""
    kind = text(dtype)
    if kind == "bool":
        return np.asarray(x != 0)
    if kind.startswith(("int", "uint")):
        if x.dtype.kind == "f" and not np.isfinite(x).all():
            raise Undocumented("an integer of what is not finite")
        made = "int64" if kind == "int32" else kind  # its range is looked at by the interpreter
        return np.trunc(x).astype(made) if x.dtype.kind == "f" else x.astype(made)
    return x.astype({"fp16": np.float16, "fp32": np.float32}[kind])


@evaluates("softmax")
def softmax(x: Array, axis: Any = -1) -> Any:
    """exp(x - max) / sum(exp(x - max)) along the axis."""
    v = wide(x)
    shifted = np.exp(v - v.max(axis=int(axis), keepdims=True))
    return shifted / shifted.sum(axis=int(axis), keepdims=True)


@evaluates("cumsum")
def cumsum(x: Array, axis: Any = 0, exclusive: Any = False, reverse: Any = False) -> Any:
    """Running sum; exclusive: of what comes before. reverse: from the end."""
    made = np.flip(x, int(axis)) if flag(reverse) else x
    total = np.cumsum(made, axis=int(axis), dtype=made.dtype)
    if flag(exclusive):
        total = np.roll(total, 1, axis=int(axis))
        total[tuple([slice(None)] * (int(axis) % x.ndim) + [0])] = 0
    return np.flip(total, int(axis)) if flag(reverse) else total


def _channel(parameter: Array, x: Array) -> Any:
    return parameter.reshape([1, -1] + [1] * (x.ndim - 2)) if parameter.ndim else parameter
