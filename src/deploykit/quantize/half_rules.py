"""What half precision may touch: decided by the operator schemas, then by the values that half cannot hold."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_ir as ir

from deploykit.quantize.families import CONTROL_FLOW

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HALF_MAX = float(np.finfo(np.float16).max)  # 65504
# An attribute, not an input, decides their output type; they are cheap, so they stay as they are and a Cast follows.
TYPED_BY_ATTRIBUTE = frozenset(
    {
        "Bernoulli",
        "BlackmanWindow",
        "EyeLike",
        "HammingWindow",
        "HannWindow",
        "MelWeightMatrix",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    }
)
# onnxruntime's kernels want these inputs in float32, whatever the schema allows (Resize: roi and scales).
FLOAT_INPUTS: dict[str, frozenset[int]] = {"Resize": frozenset({1, 2})}
# A value beyond the range of half stays beyond it through these.
CARRIES_MAGNITUDE = frozenset(
    {
        *(
            "Add",
            "Cast",
            "Clip",
            "Concat",
            "Div",
            "Expand",
            "Flatten",
            "Gather",
            "Identity",
            "Max",
            "Min",
            "Mul",
            "Neg",
        ),
        *(
            "Pad",
            "Relu",
            "Reshape",
            "Slice",
            "Split",
            "Squeeze",
            "Sub",
            "Sum",
            "Tile",
            "Transpose",
            "Unsqueeze",
            "Where",
        ),
    }
)
# Arithmetic on sizes and positions: exact in float32, wrong from 2049 on in half.
INDEX_ARITHMETIC = CARRIES_MAGNITUDE | {"Abs", "Ceil", "Floor", "Mod", "Pow", "Reciprocal", "Round", "Sqrt"}
_BOTH = {"tensor(float)", "tensor(float16)"}
_INTEGERS = {ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL, ir.DataType.UINT64, ir.DataType.UINT32}


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
    """Type variables of an operator's inputs and outputs; variadic: the last one repeats. halves: may be either."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    variadic: tuple[bool, bool]
    halves: frozenset[str]


@functools.cache
def _formal(domain: str, op: str, version: int) -> _Formal | None:
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
            if set(constraint.allowed_type_strs) >= _BOTH
        ),
    )


def signature_of(node: ir.Node, versions: Mapping[str, int]) -> Signature:
    """The places where a node may go to half; none for an operator without a schema (a custom one).

    Values of one type variable change together, so one whose type is unknown (what a custom operator gives) keeps its
    variable in float32; in control flow each value has a type of its own.
    """
    formal = _formal(node.domain, node.op_type, versions.get(node.domain, 1))
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
        formal = _formal(node.domain, node.op_type, model.opset_imports.get(node.domain, 1))
        for index, value in enumerate(node.outputs if formal is not None else ()):
            if (
                value.type is None
                and formal
                and _variable(formal.outputs, index, formal.variadic[1]) == "tensor(float)"
            ):
                value.type = ir.TensorType(ir.DataType.FLOAT)


def _variable(variables: tuple[str, ...], index: int, variadic: bool) -> str:
    if index < len(variables):
        return variables[index]
    return variables[-1] if variadic else ""


def is_single(value: ir.Value | None) -> bool:
    """Whether the value is a float32 tensor (sequences and optionals of them are not touched)."""
    return value is not None and isinstance(value.type, ir.TensorType) and value.dtype == ir.DataType.FLOAT


class Islands:
    """Finds the nodes that must stay in float32, with the reason, in one walk in graph order."""

    def __init__(self, model: ir.Model, exclude: Sequence[str], peaks: Mapping[str, float]) -> None:
        """peaks: measured largest magnitude by tensor name; tensors without one are judged by what flows into them."""
        self._model = model
        self._exclude = exclude
        self._peaks = peaks
        self._beyond: dict[ir.Value, float] = {}
        self._counted: set[ir.Value] = set()
        self.reasons: dict[ir.Node, str] = {}

    def find(self) -> dict[ir.Node, str]:
        """Reason by node."""
        for value in self._model.graph.inputs:
            if self._peaks.get(value.name or "", 0.0) > HALF_MAX:
                self._beyond[value] = self._peaks[value.name or ""]
        for graph in self._model.graphs():
            for value in graph.initializers.values():
                self._judge_constant(value)
        for node in self._model.graph.all_nodes():
            reason = self._reason(node)
            if reason is not None:
                self.reasons[node] = reason
            self._follow(node, in_float=reason is not None)
        return self.reasons

    def _judge_constant(self, value: ir.Value) -> None:
        if not is_single(value) or value.const_value is None or value.const_value.size == 0:
            return
        array = value.const_value.numpy()
        with np.errstate(invalid="ignore"):
            finite = np.abs(array[np.isfinite(array)])
        if finite.size and float(finite.max()) > HALF_MAX:
            self._beyond[value] = float(finite.max())

    def _reason(self, node: ir.Node) -> str | None:
        if node.op_type in CONTROL_FLOW and not node.domain:
            return None
        if node.name in self._exclude or node.op_type in self._exclude:
            return "excluded"
        if not node.domain and node.op_type in TYPED_BY_ATTRIBUTE:
            return "an attribute fixes its type"
        if any(isinstance(v.type, (ir.SequenceType, ir.OptionalType)) for v in (*node.inputs, *node.outputs) if v):
            return "it takes or gives a sequence"
        for value in node.inputs:
            if value is not None and value in self._beyond:
                return f"{value.name!r} reaches {self._beyond[value]:.3g}, and half precision ends at {HALF_MAX:g}"
        for value in node.outputs:
            if is_single(value) and self._peaks.get(value.name or "", 0.0) > HALF_MAX:
                return (
                    f"its result reaches {self._peaks[value.name or '']:.3g}, and half precision ends at {HALF_MAX:g}"
                )
        if self._is_index_arithmetic(node):
            return "it computes with integers (sizes, positions, masks), which half precision holds only up to 2048"
        return None

    def _is_index_arithmetic(self, node: ir.Node) -> bool:
        if node.domain or node.op_type not in INDEX_ARITHMETIC or node.op_type == "Cast":
            return False
        floats = [value for value in node.inputs if value is not None and is_single(value)]
        return any(v in self._counted for v in floats) and all(v in self._counted or v.is_initializer() for v in floats)

    def _follow(self, node: ir.Node, *, in_float: bool) -> None:
        counted = self._is_index_arithmetic(node)
        if node.op_type == "Cast" and not node.domain and node.inputs[0] is not None:
            counted = node.inputs[0].dtype in _INTEGERS
        largest = max((self._beyond[v] for v in node.inputs if v is not None and v in self._beyond), default=0.0)
        for value in node.outputs:
            if not is_single(value):
                continue
            if counted:
                self._counted.add(value)
            measured = self._peaks.get(value.name or "")
            if measured is not None:
                if measured > HALF_MAX:
                    self._beyond[value] = measured
            elif in_float and largest > HALF_MAX and node.op_type in CARRIES_MAGNITUDE:
                self._beyond[value] = largest
