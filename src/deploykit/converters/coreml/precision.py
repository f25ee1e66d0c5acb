"""fp32 programs to fp16: casts around the chosen operations, by coremltools' own transform, under our rules."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

import coremltools as ct
import numpy as np
from coremltools.converters.mil.mil.passes.defs.quantization import FP16ComputePrecision
from coremltools.converters.mil.mil.passes.pass_registry import PASS_REGISTRY

from deploykit.converters.coreml.simulator.halves import half_constant
from deploykit.converters.coreml.simulator.interpreter import operations

if TYPE_CHECKING:
    from collections.abc import Collection

# What follows coremltools' fp16 pass in its pipeline; the rest of the pipeline has run before.
_AFTER = (
    "common::update_output_dtypes",
    "common::const_elimination",
    "common::dead_code_elimination",
    "common::cast_optimization",
    "common::dead_code_elimination",
    "common::const_elimination",
    "common::const_deduplication",
    "common::dead_code_elimination",
    "common::dedup_op_and_var_names",
)
_CAST = re.compile(r"_cast_fp16$")


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """An operation that can be fp16.

    parameters: its arguments that are fp16 then. Others stay as they are: integers, and what Core ML takes in fp32
    beside fp16, such as slopes and the epsilon of a logarithm.
    """

    operation: Any
    parameters: tuple[str, ...]

    @property
    def kind(self) -> str:
        """Its MIL operator."""
        return str(self.operation.op_type)


class _Transform(FP16ComputePrecision):  # type: ignore[misc]
    """coremltools' transform on exactly the operations that it is told.

    Its own rules would leave out others, and raise the small values of any constant below 400 elements.
    """

    def __init__(self, chosen: Collection[str] = ()) -> None:
        super().__init__(op_selector=lambda operation: operation.name in chosen)
        self.refused: list[str] = []

    def is_valid_op(self, operation: Any) -> bool:
        return operation.op_type not in {*self._UNSUPPORTED_FP16_OPS, "const"}

    def transform_op(self, operation: Any) -> None:
        try:
            super().transform_op(operation)
        except (ValueError, TypeError, NotImplementedError):
            # Its builder refuses the operator in fp16; the casts that nothing reads are removed afterwards.
            self.refused.append(operation.name)

    def _check_underflow_to_zero(self, new_var: Any, var: Any) -> None:
        if new_var.val is not None and np.size(var.val) == 1:
            kept = half_constant(np.asarray(var.val, np.float32))
            new_var._sym_val.val = kept[()] if not np.ndim(new_var.val) else kept.reshape(np.shape(new_var.val))


def candidates(function: Any) -> dict[str, Candidate]:
    """What can be fp16, in the order in which it runs, by the operation's name."""
    rule = _Transform()
    found = {}
    with function:
        for operation in operations(function):
            if not rule.is_valid_op(operation):
                continue
            taken = tuple(
                name
                for name, given in operation.inputs.items()
                if given is not None
                and any(
                    variable.is_tensor_or_scalar_of(dtype="fp32")
                    for variable in (given if isinstance(given, (list, tuple)) else [given])
                )
                and rule.should_cast_parameter(operation, name)
            )
            if taken:
                found[operation.name] = Candidate(operation, taken)
    return found


def make_half(program: Any, chosen: Collection[str], *, interface: bool = False) -> list[str]:
    """Puts these operations into fp16, in place, and says which of them coremltools could not.

    interface: inputs and outputs are fp16, too. Variables keep their names.
    """
    function = program.functions["main"]
    transform = _Transform(chosen)
    if interface:
        transform.transform_function_signatures(function)
    transform.apply(program)
    for name in _AFTER:
        PASS_REGISTRY[name](program)
    _restore_names(function)
    return transform.refused


def _restore_names(function: Any) -> None:
    """A variable in fp16 takes the name of the fp32 one that it stands for, which is gone."""
    every = list(operations(function))
    taken = {variable.name for operation in every for variable in operation.outputs} | set(function.inputs)
    for operation in every:
        for variable in operation.outputs:
            wanted = _CAST.sub("", variable.name)
            if wanted != variable.name and wanted not in taken:
                taken.add(wanted)
                variable.name = wanted
        wanted = _CAST.sub("", operation.name)
        if wanted != operation.name and len(operation.outputs) == 1 and operation.outputs[0].name == wanted:
            operation.name = wanted


def settled() -> Any:
    """The passes for a program that has had all of them: what keeps it writable."""
    return ct.PassPipeline(list(_AFTER), "settled")
