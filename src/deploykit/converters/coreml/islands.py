"""Which operations of an fp32 program cannot be fp16, by what was measured on data and by what they compute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.converters.coreml.measuring import DIVISORS, Evidence, largest
from deploykit.converters.coreml.simulator.interpreter import operations

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from deploykit.converters.coreml.precision import Candidate

LIMIT = float(np.finfo(np.float16).max)
LEAST = float(np.finfo(np.float16).smallest_subnormal)
# Below it, rounding to the next value of the format is off by more than 1 %.
COARSE = 50 * LEAST
INTEGERS = 2048  # all integers up to it are exact
_END = f"fp16 ends at {LIMIT:.6g}"
_DIGITS = "where fp16 has too few digits"

# A scalar added to keep a divisor from 0.
_GUARDS = frozenset({"add", "sub", "maximum", "clip"})
# Tiny values in these make the result tiny.
_SCALES = frozenset({"mul", "real_div", "pow", "matmul"})
_MOVED = "abs cast concat expand_dims gather identity reshape slice_by_index slice_by_size squeeze tile"
_MOVES = frozenset(_MOVED.split())
# Their result is about as large as their first input.
_SAME = "abs cast identity reduce_l1_norm reduce_l2_norm reduce_mean reduce_sum reshape squeeze transpose expand_dims"
_SAME_SIZE = frozenset(_SAME.split())
# They hand on what their input holds.
_CARRIES = frozenset(["identity", "reshape", "squeeze", "transpose", "expand_dims", "tile", "slice_by_index"])
# Arithmetic on sizes and positions.
_COUNTING = "add ceil clip floor floor_div inverse maximum minimum mod mul pow real_div round select sqrt sub transpose"
_INDEX = _MOVES | frozenset(_COUNTING.split())


class Islands:
    """Finds the operations that have to stay fp32, each with the reason."""

    def __init__(self, function: Any, known: Mapping[str, Candidate], evidence: Evidence) -> None:
        """known: those that can be fp16."""
        self._operations = list(operations(function))
        self._known = known
        self._evidence = evidence
        self._small: dict[Any, float] = {}  # what a division needs, and fp16 cannot hold
        for operation in self._operations:
            self._judge_divisor(operation)
        self._indices = self._index_arithmetic()

    def reasons(self) -> dict[str, str]:
        """By the operation's name, in the order in which they run."""
        found = {}
        for name, item in self._known.items():
            reason = self._beyond(item) or self._too_small(item) or self._counts(item)
            if reason is not None:
                found[name] = reason
        return found

    def _beyond(self, item: Candidate) -> str | None:
        operation = item.operation
        for name, variable in _read(item):
            peak = self._peak(variable)
            if peak > LIMIT and not _slack(operation, name, variable):
                told = repr(variable.name) if constant_of(variable) is None else "a constant"
                return f"{told} reaches {peak:.3g}, and {_END}"
        for variable in operation.outputs:
            if self._peak(variable) > LIMIT:
                return f"its result reaches {self._peak(variable):.3g}, and {_END}"
        reached, what = self._evidence.inside.get(operation.name, (0.0, ""))
        return f"{what} reaches {reached:.3g}, and {_END}" if reached > LIMIT else None

    def _peak(self, variable: Any) -> float:
        value = constant_of(variable)
        return largest(value) if value is not None else self._evidence.peaks.get(variable.name, 0.0)

    def _too_small(self, item: Candidate) -> str | None:
        operation = item.operation
        for name, variable in _read(item):
            value = constant_of(variable)
            if value is None:
                divides = DIVISORS.get(operation.op_type) == name
                tiny = 0.0 < self._evidence.peaks.get(variable.name, 1.0) < COARSE
                if variable in self._small and (divides or tiny):
                    return f"{variable.name!r} gets as small as {self._small[variable]:.3g}, {_DIGITS}"
                continue
            size = largest(value)
            if 0.0 < size <= LEAST / 2 and value.size == 1 and self._guards(operation):
                return f"a constant is {size:.3g}, which fp16 rounds to 0, and it keeps a divisor from 0"
            if 0.0 < size < COARSE and operation.op_type in _SCALES:
                return f"a constant is at most {size:.3g}, {_DIGITS}"
        for variable in operation.outputs:
            if variable in self._small:
                return f"its result gets as small as {self._small[variable]:.3g}, {_DIGITS}"
        return None

    def _guards(self, operation: Any) -> bool:
        """Whether what a scalar is added to is divided by, and not known to stay away from 0 anyway."""
        if operation.op_type not in _GUARDS:
            return False
        result = operation.outputs[0]
        known = self._evidence.smallest.get(result.name)
        return _divided(result) and (known is None or known < COARSE)

    def _judge_divisor(self, operation: Any) -> None:
        """Marks a divisor that gets too small, and what it is made of as far as its digits come from there."""
        name = DIVISORS.get(operation.op_type)
        if name is None or constant_of(operation.inputs[name]) is not None:
            return
        divisor = operation.inputs[name]
        least = self._evidence.smallest.get(divisor.name, np.inf)
        # So small it may get with other data, whatever it was on this.
        least = min(least, _guarded(divisor))
        todo = [(divisor, float(least))]
        while todo:
            variable, size = todo.pop()
            if size >= COARSE or not variable.is_tensor_or_scalar_of(dtype="fp32") or constant_of(variable) is not None:
                continue
            if self._small.get(variable, np.inf) <= size:
                continue
            self._small[variable] = size
            if variable.op is not None:
                todo += _sources(variable.op, size)

    def _index_arithmetic(self) -> set[str]:
        """Operations between integers that become floats and floats that become integers again."""
        counted: set[Any] = set()
        for operation in self._operations:
            kind = operation.op_type
            if kind == "range_1d" or (kind == "cast" and str(operation.x.dtype).find("int") >= 0):
                counted |= set(operation.outputs)
            elif kind in _INDEX:
                floats = [v for v in _flat(operation) if v.is_tensor_or_scalar_of(dtype="fp32")]
                varying = [v for v in floats if constant_of(v) is None]
                if varying and all(v in counted for v in varying):
                    counted |= set(operation.outputs)
        wanted: set[Any] = set()
        found = set()
        for operation in reversed(self._operations):
            made = [v for v in operation.outputs if v.is_tensor_or_scalar_of(dtype="fp32")]
            back = operation.op_type == "cast" and not made and operation.x.is_tensor_or_scalar_of(dtype="fp32")
            if back or any(v in wanted for v in made):
                wanted |= {v for v in _flat(operation) if v in counted}
            exact = any(v in counted and (v in wanted or self._peak(v) > INTEGERS) for v in made)
            if exact and operation.op_type in _INDEX | {"range_1d"}:
                found.add(operation.name)
        return found

    def _counts(self, item: Candidate) -> str | None:
        if item.operation.name not in self._indices:
            return None
        return f"it computes with integers (sizes, positions), which fp16 holds only up to {INTEGERS}"


def constant_of(variable: Any) -> Any:
    """The array of a variable that the program fixes; None for a computed one."""
    operation = variable.op
    return np.asarray(operation.outputs[0].val) if operation is not None and operation.op_type == "const" else None


def _read(item: Candidate) -> Iterator[tuple[str, Any]]:
    """The arguments that would be rounded."""
    for name in item.parameters:
        given = item.operation.inputs[name]
        for variable in given if isinstance(given, (list, tuple)) else [given]:
            if variable.is_tensor_or_scalar_of(dtype="fp32"):
                yield name, variable


def _flat(operation: Any) -> list[Any]:
    found = []
    for given in operation.inputs.values():
        found += list(given) if isinstance(given, (list, tuple)) else [given] if given is not None else []
    return found


def _guarded(variable: Any) -> float:
    """The scalar that keeps a variable from 0, as it arrives there; infinite where there is none."""
    maker = variable.op
    if maker is None:
        return float(np.inf)
    if maker.op_type in _GUARDS:
        found = [largest(value) for v in _flat(maker) if (value := constant_of(v)) is not None and value.size == 1]
        return min((size for size in found if size > 0), default=float(np.inf))
    if maker.op_type == "sqrt":
        return float(_guarded(maker.x) ** 0.5)
    return _guarded(maker.x) if maker.op_type in _CARRIES else float(np.inf)


def _divided(variable: Any) -> bool:
    return any(reader.inputs.get(DIVISORS.get(reader.op_type, "")) is variable for reader in variable.child_ops)


def _slack(operation: Any, name: str, variable: Any) -> bool:
    """A bound that no fp16 value reaches: it becomes infinite and bounds as little as before."""
    bound = constant_of(variable)
    if bound is None:
        return False
    if operation.op_type == "clip":
        return bool(np.all(bound > 0)) if name == "beta" else name == "alpha" and bool(np.all(bound < 0))
    outside = bound[np.abs(bound) > LIMIT]
    if operation.op_type == "minimum":
        return bool(np.all(outside > 0))
    return operation.op_type == "maximum" and bool(np.all(outside < 0))


def _sources(operation: Any, size: float) -> list[tuple[Any, float]]:
    """The inputs that a result of that magnitude comes from, with the magnitude that matters in them."""
    kind, x = operation.op_type, operation.inputs.get("x")
    if kind in {"square", "reduce_sum_square"} or (kind == "mul" and x is operation.inputs["y"]):
        return [(x, size**0.5)]
    if kind == "pow":
        exponent = constant_of(operation.inputs["y"])
        return [(x, size**0.5)] if exponent is not None and bool(np.all(exponent == 2)) else []
    if kind == "sqrt":
        return [(x, size**2)]
    if kind in _GUARDS:
        return [(x, size), *([(operation.inputs["y"], size)] if kind != "clip" else [])]
    return [(x, size)] if kind in _SAME_SIZE else []
