"""An fp32 program with any of its operations computed as if they were fp16: what mixed precision costs, measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from coremltools.converters.mil.mil import Var, types

from deploykit.converters.coreml.simulator.interpreter import Interpreter, arguments_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from deploykit.converters.coreml.simulator.interpreter import Observe
    from deploykit.converters.coreml.simulator.table import Array

    # An operation, its arguments by name, its results.
    Witness = Callable[[Any, dict[str, Any], list[Any]], None]


class HalfInterpreter(Interpreter):
    """Rounds what chosen operations take and give, as casts around them would: the values are the same, to the bit.

    witness: is shown every operation that is evaluated, in the main block and inside others.
    """

    def __init__(self, function: Any, name: str) -> None:
        """As `Interpreter`; nothing is fp16 yet."""
        self.witness: Witness | None = None
        self._half: Mapping[Any, Collection[str]] = {}
        self._rounded: dict[Var, Array] = {}  # constants in fp16, kept once they have been asked for
        self._unpacked: dict[Var, Array] = {}  # what stored weights give with scales in fp16
        super().__init__(function, name)

    def choose(self, half: Mapping[Any, Collection[str]]) -> None:
        """From now on these operations are fp16. half: names of the arguments that are rounded, by operation."""
        if half is self._half:
            return
        self._half = half
        self._unpacked = {}
        values = dict(self._fixed)
        with np.errstate(all="ignore"):
            for operation in half:
                if operation.op_type.startswith("constexpr_"):
                    self._step(operation, values)
                    self._unpacked[operation.outputs[0]] = values[operation.outputs[0]]

    def run(self, feeds: Mapping[str, Array], observe: Observe | None = None) -> dict[str, Array]:
        """As `Interpreter.run`."""
        found = super().run(feeds, observe)
        declared = {v.name: types.nptype_from_builtin(v.dtype) for v in self.function.outputs}
        return {name: array.astype(declared[name], copy=False) for name, array in found.items()}

    def _arguments(self, operation: Any, values: Mapping[Var, Any]) -> dict[str, Any]:
        half = self._half.get(operation, ())
        rounded = {
            variable
            for name in half
            for variable in _listed(operation.inputs[name])
            if getattr(values[variable], "dtype", None) == np.float32
        }

        def value_of(variable: Var) -> Any:
            value = self._unpacked.get(variable, values[variable])
            return self._halved(variable, value) if variable in rounded else value

        return arguments_of(operation, value_of)

    def _halved(self, variable: Var, value: Array) -> Array:
        if variable not in self._fixed or value.dtype == np.float16:
            return value.astype(np.float16, copy=False)
        if variable not in self._rounded:
            self._rounded[variable] = half_constant(value)
        return self._rounded[variable]

    def _step(self, operation: Any, values: dict[Var, Any]) -> None:
        # Looked at before: an argument of a loop may be overwritten by what it gives.
        shown = self._arguments(operation, values) if self.witness is not None and not operation.blocks else None
        super()._step(operation, values)
        if shown is not None and self.witness is not None:
            self.witness(operation, shown, [values[variable] for variable in operation.outputs])
        if operation in self._half:
            for variable in operation.outputs:
                if values[variable].dtype == np.float32:
                    values[variable] = values[variable].astype(np.float16)


def _listed(given: Any) -> list[Var]:
    return list(given) if isinstance(given, (list, tuple)) else [given]


def half_constant(value: Array) -> Array:
    """A constant in fp16. A scalar that would vanish, an epsilon, becomes the smallest value there is instead."""
    made = value.astype(np.float16)
    if value.size == 1 and not made.any() and value.any():
        return np.asarray(np.copysign(np.finfo(np.float16).smallest_subnormal, value), np.float16)
    return made
