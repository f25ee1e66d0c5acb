"""What half precision may touch, as the operator schemas say it."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

from deploykit.quantize.families import CONTROL_FLOW

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deploykit.quantize.half_formats import HalfFormat

# An attribute, not an input, decides their output type; they are cheap, so they stay as they are and a Cast follows.
_TYPED = (
    "Bernoulli BlackmanWindow EyeLike HammingWindow HannWindow MelWeightMatrix Multinomial RandomNormal "
    "RandomNormalLike RandomUniform RandomUniformLike"
)
TYPED_BY_ATTRIBUTE = frozenset(_TYPED.split())
# onnxruntime's kernels want these inputs in float32, whatever the schema allows (Resize: roi and scales).
FLOAT_INPUTS: dict[str, frozenset[int]] = {"Resize": frozenset({1, 2})}
_SINGLE = "tensor(float)"
# What engines read today; bfloat16 has come to all operators that matter by then.
NEWEST = 22


@dataclasses.dataclass(frozen=True, slots=True)
class Signature:
    """For each input and output of a node: whether the operator takes or gives half there instead of float32."""

    inputs: tuple[bool, ...]
    outputs: tuple[bool, ...]

    @property
    def any(self) -> bool:
        """Whether half precision changes anything about the node."""
        return any(self.inputs) or any(self.outputs)


@dataclasses.dataclass(frozen=True, slots=True)
class _Formal:
    """Type variables of an operator's inputs and outputs; variadic: the last one repeats.

    halves: variables that may be float32 or the half type.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    variadic: tuple[bool, bool]
    halves: frozenset[str]


@functools.cache
def _formal(domain: str, op: str, version: int, half: str) -> _Formal | None:
    try:
        schema = onnx.defs.get_schema(op, version, domain)
    except onnx.defs.SchemaError:
        return None
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    return _Formal(
        tuple(formal.type_str for formal in schema.inputs),
        tuple(formal.type_str for formal in schema.outputs),
        (
            bool(schema.inputs) and schema.inputs[-1].option == variadic,
            bool(schema.outputs) and schema.outputs[-1].option == variadic,
        ),
        frozenset(
            constraint.type_param_str
            for constraint in schema.type_constraints
            if {_SINGLE, half} <= set(constraint.allowed_type_strs)
        ),
    )


def signature_of(node: ir.Node, versions: Mapping[str, int], form: HalfFormat) -> Signature:
    """The places where a node may go to half; none for an operator without a schema (a custom one).

    Values of one type variable change together, so one whose type is unknown (what a custom operator gives) keeps its
    variable in float32; in control flow each value has a type of its own.
    """
    formal = _formal(node.domain, node.op_type, versions.get(node.domain, 1), form.schema_type)
    if formal is None:
        return Signature((False,) * len(node.inputs), (False,) * len(node.outputs))
    inputs = [_variable(formal.inputs, index, formal.variadic[0]) for index in range(len(node.inputs))]
    outputs = [_variable(formal.outputs, index, formal.variadic[1]) for index in range(len(node.outputs))]
    halves = set(formal.halves)
    if node.op_type not in CONTROL_FLOW:
        for variable, value in (*zip(inputs, node.inputs, strict=True), *zip(outputs, node.outputs, strict=True)):
            if value is not None and value.name and value.dtype in {None, ir.DataType.UNDEFINED}:
                halves.discard(variable)
    kept = FLOAT_INPUTS.get(node.op_type, frozenset()) if not node.domain else frozenset()
    return Signature(
        tuple(
            index not in kept and is_single(value) and variable in halves
            for index, (variable, value) in enumerate(zip(inputs, node.inputs, strict=True))
        ),
        tuple(is_single(value) and variable in halves for variable, value in zip(outputs, node.outputs, strict=True)),
    )


def complete_types(model: ir.Model) -> None:
    """Types that shape inference does not know and the schema fixes: outputs of classic machine-learning operators."""
    for node in model.graph.all_nodes():
        formal = _formal(node.domain, node.op_type, model.opset_imports.get(node.domain, 1), "")
        for index, value in enumerate(node.outputs if formal is not None else ()):
            if value.type is None and formal and _variable(formal.outputs, index, formal.variadic[1]) == _SINGLE:
                value.type = ir.TensorType(ir.DataType.FLOAT)


def _variable(variables: tuple[str, ...], index: int, variadic: bool) -> str:
    if index < len(variables):
        return variables[index]
    return variables[-1] if variadic else ""


def is_single(value: ir.Value | None) -> bool:
    """Whether the value is a float32 tensor (sequences and optionals of them are not touched)."""
    return value is not None and isinstance(value.type, ir.TensorType) and value.dtype == ir.DataType.FLOAT


def opset_for(model: ir.Model, form: HalfFormat) -> int:
    """The lowest opset of the standard domain, not below the model's, in which most of its operators take the format.

    bfloat16 came to MatMul with opset 13, to control flow with 16 and to Conv, pooling and LSTM only with 22.
    """
    wanted = current = model.opset_imports.get("", 0)
    newest = max(current, min(NEWEST, onnx.defs.onnx_opset_version()))
    for op in {node.op_type for node in model.graph.all_nodes() if not node.domain} - TYPED_BY_ATTRIBUTE:
        if _halves(op, current, form):
            continue
        wanted = max(wanted, next((v for v in range(current, newest + 1) if _halves(op, v, form)), 0))
    return wanted


def _halves(op: str, version: int, form: HalfFormat) -> bool:
    formal = _formal("", op, version, form.schema_type)
    return formal is not None and bool(formal.halves)
