"""Arithmetic, comparisons, logic and elementary functions."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var, types

from deploykit.converters.coreml.lowering.context import OpContext, constant, like, lowers, narrowed
from deploykit.opsupport.verdict import Verdict, conditional, supported, unsupported

if TYPE_CHECKING:
    from deploykit.converters.coreml.lowering.node import Node

_BINARY = {
    "Add": (mb.add, (7, 13, 14)),
    "Sub": (mb.sub, (7, 13, 14)),
    "Mul": (mb.mul, (7, 13, 14)),
    "And": (mb.logical_and, (7,)),
    "Or": (mb.logical_or, (7,)),
    "Xor": (mb.logical_xor, (7,)),
    "Less": (mb.less, (7, 9, 13)),
    "Greater": (mb.greater, (7, 9, 13)),
    "LessOrEqual": (mb.less_equal, (12, 16)),
    "GreaterOrEqual": (mb.greater_equal, (12, 16)),
}
_UNARY = {
    "Abs": (mb.abs, (6, 13)),
    "Exp": (mb.exp, (6, 13)),
    "Sqrt": (mb.sqrt, (6, 13)),
    "Floor": (mb.floor, (6, 13)),
    "Ceil": (mb.ceil, (6, 13)),
    "Sign": (mb.sign, (9, 13)),
    "Erf": (mb.erf, (9, 13)),
    "Sin": (mb.sin, (7, 22)),
    "Cos": (mb.cos, (7, 22)),
    "Tan": (mb.tan, (7, 22)),
    "Asin": (mb.asin, (7, 22)),
    "Acos": (mb.acos, (7, 22)),
    "Atan": (mb.atan, (7, 22)),
    "Sinh": (mb.sinh, (9, 22)),
    "Cosh": (mb.cosh, (9, 22)),
    "Atanh": (mb.atanh, (9, 22)),
    "Tanh": (mb.tanh, (6, 13)),
    "Sigmoid": (mb.sigmoid, (6, 13)),
    "Relu": (mb.relu, (6, 13, 14)),
    "Softsign": (mb.softsign, (1, 22)),
    "Softplus": (mb.softplus, (1, 22)),
    "Not": (mb.logical_not, (1,)),
}
_INTEGER_UNARY = {"Abs", "Sign", "Relu"}


def operands(op: OpContext) -> tuple[Var | np.ndarray[Any, Any], Var | np.ndarray[Any, Any]]:
    """Both inputs of a binary operator; MIL wants at least one of them as a variable."""
    return op.input(0), op.input(1)


def _not_on_bool(node: Node) -> Verdict:
    if node.dtype(0) == "bool" and node.op in {"Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Add", "Sub", "Mul"}:
        return unsupported(f"Core ML has no {node.op} of bool", remedy="cast to int32 first")
    return supported()


def _float_only(node: Node) -> Verdict:
    if node.op not in _INTEGER_UNARY and node.is_integer(0):
        return unsupported(f"Core ML computes {node.op} in float only", remedy="cast to float32 before it")
    return supported()


def _register() -> None:
    """One rule an operator of the two tables: they differ in the MIL operator only."""

    def binary(op: OpContext, build: Any) -> Var:
        x, y = operands(op)
        return build(x=x, y=y)

    def unary(op: OpContext, build: Any) -> Var:
        return build(x=op.input())

    for name, (build, since) in _BINARY.items():
        lowers(name, since=since, when=_not_on_bool)(functools.partial(binary, build=build))
    for name, (build, since) in _UNARY.items():
        lowers(name, since=since, when=_float_only)(functools.partial(unary, build=build))


_register()


@lowers("Div", since=(7, 13, 14))
def div(op: OpContext) -> Var:
    """Float division, or integer division that truncates towards zero (spec, Div-14) where MIL's rounds down."""
    x, y = operands(op)
    if not op.is_integer(0):
        return mb.real_div(x=x, y=y)
    divisor = op.constant(1)
    if _is_size(x) and divisor is not None and (divisor > 0).all():
        return mb.floor_div(x=x, y=y)
    magnitude = mb.floor_div(x=mb.abs(x=x), y=mb.abs(x=y))
    return mb.mul(x=magnitude, y=mb.mul(x=mb.sign(x=x), y=mb.sign(x=y)))


def _is_size(variable: Var) -> bool:
    """Whether a value is made of the sizes of tensors, which are never negative, nor 0 in Core ML."""
    while variable.op is not None:
        kind = variable.op.op_type
        if kind == "shape":
            return True
        if kind not in {"gather", "slice_by_index", "squeeze", "expand_dims", "reduce_prod", "identity"}:
            return False
        variable = variable.op.x
    return False


def _mod_kind(node: Node) -> Verdict:
    if not node.is_integer(0):
        return conditional(
            "Apple does not say what its mod gives for infinities and zero divisors",
            remedy="harmless for finite values and divisors other than 0",
        )
    return supported()


@lowers("Mod", since=(10, 13, 28), when=_mod_kind)
def mod(op: OpContext) -> Var:
    """The divisor's sign as in Python; with fmod the dividend's, as the remainder of the magnitudes."""
    x, y = operands(op)
    if not op.flag("fmod"):
        return mb.mod(x=x, y=y)
    return mb.mul(x=mb.sign(x=x), y=mb.mod(x=mb.abs(x=x), y=mb.abs(x=y)))


def _single(node: Node) -> Verdict:
    if node.dtype(0) != "float32":
        return unsupported(f"it is written with squares, which {node.dtype(0)} cannot hold", remedy="cast to float32")
    return supported()


@lowers("Asinh", since=(9, 22), when=_single)
def asinh(op: OpContext) -> Var:
    """Near 0 as atanh(x / sqrt(x^2 + 1)), which keeps small values; elsewhere as sign(x) log(|x| + sqrt(x^2 + 1))."""
    x = op.input()
    root = mb.sqrt(x=mb.add(x=mb.mul(x=x, y=x), y=np.float32(1)))
    size = mb.abs(x=x)
    large = mb.mul(x=mb.sign(x=x), y=mb.log(x=mb.add(x=size, y=root), epsilon=np.float32(0)))
    return mb.select(cond=mb.less(x=size, y=np.float32(1)), a=mb.atanh(x=mb.real_div(x=x, y=root)), b=large)


@lowers("Acosh", since=(9, 22), when=_single)
def acosh(op: OpContext) -> Var:
    """log(x + sqrt((x - 1) (x + 1)))."""
    x = op.input()
    product = mb.mul(x=mb.sub(x=x, y=np.float32(1)), y=mb.add(x=x, y=np.float32(1)))
    return mb.log(x=mb.add(x=x, y=mb.sqrt(x=product)), epsilon=np.float32(0))


def _power_kind(node: Node) -> Verdict:
    if not node.is_integer(0):
        return supported()
    exponent = node.constant(1)
    if not node.is_integer(1) and (exponent is None or not np.array_equal(exponent, np.rint(exponent))):
        return unsupported("Core ML raises integers to integers only", remedy="cast both to float32 before it")
    if exponent is not None and (exponent < 0).any():
        return unsupported("Core ML does not say what an integer to a negative power is", remedy="cast to float32")
    return supported()


@lowers("Pow", since=(7, 12, 13, 15), when=_power_kind)
def power(op: OpContext) -> Var:
    """x ** y in the type of x; small whole exponents as products, which are exact for negative x."""
    x, exponent = op.input(0), op.constant(1)
    if exponent is not None and exponent.size == 1:
        if float(exponent.reshape(())) == 1.0:
            return mb.identity(x=x)
        if float(exponent.reshape(())) == 2.0:
            return mb.mul(x=x, y=x)
        if float(exponent.reshape(())) == 0.5 and not op.is_integer(0):
            return mb.sqrt(x=x)
    y = op.input(1)
    if y.dtype != x.dtype:
        y = mb.cast(x=y, dtype=types.builtin_to_string(x.dtype))
    return mb.pow(x=x, y=y)


@lowers("Equal", since=(7, 11, 13, 19))
def equal(op: OpContext) -> Var:
    """x == y; MIL compares numbers only, so booleans are equal when their exclusive or is false."""
    x, y = operands(op)
    if op.dtype(0) == "bool":
        return mb.logical_not(x=mb.logical_xor(x=x, y=y))
    for size, other in ((op.input(0), op.constant(1)), (op.input(1), op.constant(0))):
        if other is not None and not other.ndim and not size.rank and other <= 0 and _is_size(size):
            return constant(np.array(False))  # Core ML has no empty tensors: whether one is, needs no question
    return mb.equal(x=x, y=y)


@lowers("Max", since=(8, 12, 13))
def maximum(op: OpContext) -> Var:
    """Elementwise maximum of any number of inputs, broadcast."""
    return _fold(op, mb.maximum)


@lowers("Min", since=(8, 12, 13))
def minimum(op: OpContext) -> Var:
    """Elementwise minimum of any number of inputs, broadcast."""
    return _fold(op, mb.minimum)


@lowers("Sum", since=(8, 13))
def total(op: OpContext) -> Var:
    """Sum of any number of inputs, broadcast."""
    return _fold(op, mb.add)


@lowers("Mean", since=(8, 13))
def mean(op: OpContext) -> Var:
    """Mean of any number of inputs, broadcast."""
    added = _fold(op, mb.add)
    return mb.real_div(x=added, y=like(added, op.input_count))


def _fold(op: OpContext, build: Any) -> Var:
    variables = [op.input(position) for position in range(op.input_count)]
    if len(variables) == 1:
        return mb.identity(x=variables[0])
    return functools.reduce(lambda x, y: build(x=x, y=y), variables)


@lowers("Neg", since=(6, 13))
def negative(op: OpContext) -> Var:
    """-x."""
    x = op.input()
    return mb.mul(x=x, y=like(x, -1))


@lowers("Reciprocal", since=(6, 13))
def reciprocal(op: OpContext) -> Var:
    """1 / x; not MIL's inverse, whose epsilon is added to x."""
    x = op.input()
    return mb.real_div(x=like(x, 1), y=x)


@lowers("Log", since=(6, 13))
def log(op: OpContext) -> Var:
    """Log x, with the epsilon that MIL adds set to 0."""
    x = op.input()
    return mb.log(x=x, epsilon=like(x, 0))


def _ties(node: Node) -> Verdict:
    return conditional(
        "ONNX rounds ties to even; Apple documents Core ML's round only as to the nearest integer",
        remedy="harmless unless values lie exactly between two integers; compare on a device",
    )


@lowers("Round", since=(11, 22), when=_ties)
def nearest(op: OpContext) -> Var:
    """Rounds to the nearest integer; coremltools' own semantics (numpy's round) take ties to even."""
    return mb.round(x=op.input())


@lowers("Clip", since=(6, 11, 12, 13))
def clip(op: OpContext) -> Var:
    """Limits x; limits as attributes (revision 6) or inputs. Maximum first, so that min wins last as in the spec."""
    x = op.input()
    lower: np.ndarray[Any, Any] | None
    upper: np.ndarray[Any, Any] | None
    if op.opset < 11:
        low, high = op.real("min", -np.inf), op.real("max", np.inf)
        lower, upper = np.array(low), np.array(high)
    else:
        lower, upper = op.constant(1), op.constant(2)
    known = not (lower is None and op.has(1)) and not (upper is None and op.has(2))
    low_value = -np.inf if lower is None else float(lower.reshape(()))
    high_value = np.inf if upper is None else float(upper.reshape(()))
    if known and not op.is_integer(0) and np.isfinite(low_value) and np.isfinite(high_value) and low_value < high_value:
        return mb.clip(x=x, alpha=like(x, low_value), beta=like(x, high_value))
    if lower is not None and (op.is_integer(0) or np.isfinite(low_value)):
        x = mb.maximum(x=x, y=narrowed(lower).astype(_numpy(x)).reshape(()))
    elif lower is None and op.opset >= 11 and op.has(1):
        x = mb.maximum(x=x, y=op.input(1))
    if upper is not None and (op.is_integer(0) or np.isfinite(high_value)):
        x = mb.minimum(x=x, y=narrowed(upper).astype(_numpy(x)).reshape(()))
    elif upper is None and op.opset >= 11 and op.has(2):
        x = mb.minimum(x=x, y=op.input(2))
    return mb.identity(x=x) if x is op.input() else x


def _numpy(variable: Var) -> Any:
    return types.nptype_from_builtin(variable.dtype)


def _where_shapes(node: Node) -> Verdict:
    if node.dtype(1) == "string":
        return unsupported("Core ML has no strings", remedy="keep strings out of the model")
    return supported()


@lowers("Where", since=(9, 16), when=_where_shapes)
def where(op: OpContext) -> Var:
    """Condition ? x : y, all three broadcast; MIL's type inference forgets the condition's shape, so x is widened."""
    condition, x, y = op.input(0), op.input(1), op.input(2)
    if x.dtype == types.bool:  # Core ML selects between numbers only
        return mb.logical_or(x=mb.logical_and(x=condition, y=x), y=mb.logical_and(x=mb.logical_not(x=condition), y=y))
    zeros = mb.mul(x=mb.cast(x=condition, dtype=types.builtin_to_string(x.dtype)), y=like(x, 0))
    if condition.rank and tuple(condition.shape) != tuple(x.shape):
        x = mb.add(x=x, y=zeros)
    return mb.select(cond=condition, a=x, b=y)
