"""Which nodes stay float32 beside half precision: by what the data reaches, by constants, and by what an op does."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from deploykit.quantize.families import CONTROL_FLOW
from deploykit.quantize.half_formats import FLOAT16, Magnitudes, magnitudes
from deploykit.quantize.half_rules import TYPED_BY_ATTRIBUTE, is_single
from deploykit.quantize.prepare import constant_of, is_constant

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.quantize.half_formats import HalfFormat

# A value beyond the range of half stays beyond it through these.
_CARRIES = (
    "Add Cast Clip Concat Div Expand Flatten Gather Identity Max Min Mul Neg Pad Relu Reshape Slice Split Squeeze "
    "Sub Sum Tile Transpose Unsqueeze Where"
)
CARRIES_MAGNITUDE = frozenset(_CARRIES.split())
# Arithmetic on sizes and positions: exact in float32, wrong in half from 2049 on (bfloat16: 257).
INDEX_ARITHMETIC = CARRIES_MAGNITUDE | {"Abs", "Ceil", "Floor", "Mod", "Pow", "Reciprocal", "Round", "Sqrt"}
# Their result is about as large as their first input.
_SAME = "Abs Cast Identity ReduceL1 ReduceL2 ReduceMean ReduceSum Reshape Squeeze Transpose Unsqueeze"
SAME_SIZE = frozenset(_SAME.split())
# Where a tiny value must not become 0, by the input that it stands at.
DIVISORS: dict[str, int] = {"Div": 1, "Reciprocal": 0, "Log": 0, "Sqrt": 0}
# A scalar added to keep a divisor from 0.
GUARDS = frozenset({"Add", "Sub", "Max", "Clip"})
# Tiny values in these make the result tiny.
SCALES = frozenset({"Mul", "Div", "Pow", "MatMul"})
_INTEGERS = {ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL, ir.DataType.UINT64, ir.DataType.UINT32}


@dataclasses.dataclass(slots=True)
class Evidence:
    """What was measured on data, by name.

    peaks: largest magnitude of a tensor. smallest: smallest magnitude, not 0, of a tensor that something divides by.
    inside: of a node, the largest magnitude that its computation passes through, and what that is.
    """

    peaks: Mapping[str, float] = dataclasses.field(default_factory=dict)
    smallest: Mapping[str, float] = dataclasses.field(default_factory=dict)
    inside: Mapping[str, tuple[float, str]] = dataclasses.field(default_factory=dict)


class Islands:
    """Finds the nodes that must stay in float32, with the reason, in one walk in graph order."""

    def __init__(
        self,
        model: ir.Model,
        form: HalfFormat,
        exclude: Sequence[str],
        evidence: Evidence,
        found: Mapping[str, str] | None = None,
    ) -> None:
        """evidence: tensors without any are judged by what flows into them. found: further nodes, with the reason."""
        self._model = model
        self._form = form
        self._exclude = exclude
        self._evidence = evidence
        self._given = found or {}
        self._beyond: dict[ir.Value, float] = {}
        self._small: dict[ir.Value, float] = {}  # what a division needs, and half cannot hold
        self._counted: set[ir.Value] = set()
        self.reasons: dict[ir.Node, str] = {}
        self.constants: dict[ir.Value, Magnitudes] = {}

    def find(self) -> dict[ir.Node, str]:
        """Reason by node."""
        for graph in self._model.graphs():
            for value in (*graph.inputs, *(out for node in graph for out in node.outputs)):
                self._judge_measured(value)
            for node in graph:
                self._judge_divisor(node)
            for value in graph.initializers.values():
                self._judge_constant(value)
        for node in self._model.graph.all_nodes():
            reason = self._reason(node)
            if reason is not None:
                self.reasons[node] = reason
            self._follow(node, in_float=reason is not None)
        return self.reasons

    def _judge_measured(self, value: ir.Value) -> None:
        peak = self._evidence.peaks.get(value.name or "", 0.0)
        if peak > self._form.limit:
            self._beyond[value] = peak
        if 0.0 < peak < self._coarse:
            self._small[value] = peak

    def _judge_divisor(self, node: ir.Node) -> None:
        """Marks a divisor that gets too small, and what it is made of as far as its digits come from there."""
        index = DIVISORS.get(node.op_type) if not node.domain else None
        value = node.inputs[index] if index is not None and index < len(node.inputs) else None
        least = self._evidence.smallest.get(value.name or "") if value is not None else None
        todo = [(value, least)] if value is not None and least is not None else []
        while todo:
            value, least = todo.pop()
            if least >= self._coarse or not is_single(value) or is_constant(value):
                continue
            self._small[value] = min(least, self._small.get(value, least))
            maker = value.producer()
            if maker is not None and not maker.domain:
                todo += [(source, size) for source, size in _sources(maker, least) if source is not None]

    @property
    def _coarse(self) -> float:
        """Below it, rounding to the next value of the format is off by more than 1 %."""
        return 50 * self._form.least

    def _judge_constant(self, value: ir.Value) -> None:
        tensor = value.const_value
        if not is_single(value) or tensor is None or tensor.size == 0:
            return
        found = magnitudes(tensor.numpy(), self._form)
        if isinstance(tensor, ir.ExternalTensor):
            tensor.release()  # pages of the file count as this process's memory while they are mapped
        self.constants[value] = found
        if found.largest > self._form.limit:
            self._beyond[value] = found.largest

    def _reason(self, node: ir.Node) -> str | None:
        if node.op_type in CONTROL_FLOW and not node.domain:
            return None
        if node.name in self._exclude or node.op_type in self._exclude:
            return "excluded"
        if (node.name or "") in self._given:
            return self._given[node.name or ""]
        if not node.domain and node.op_type in TYPED_BY_ATTRIBUTE:
            return "an attribute fixes its type"
        if any(isinstance(v.type, (ir.SequenceType, ir.OptionalType)) for v in (*node.inputs, *node.outputs) if v):
            return "it takes or gives a sequence"
        if self._form is FLOAT16 and crashes_onnxruntime(node):
            return "onnxruntime 1.32 crashes while it fuses this Transpose in half precision with the MatMul behind it"
        return self._beyond_reason(node) or self._small_reason(node) or self._counted_reason(node)

    def _beyond_reason(self, node: ir.Node) -> str | None:
        end = f"{self._form.title} ends at {self._form.limit:.6g}"
        for index, value in enumerate(node.inputs):
            if value is not None and value in self._beyond and not self._is_slack_bound(node, index):
                return f"{value.name!r} reaches {self._beyond[value]:.3g}, and {end}"
        for value in node.outputs:
            if is_single(value) and value in self._beyond:
                return f"its result reaches {self._beyond[value]:.3g}, and {end}"
        reached, what = self._evidence.inside.get(node.name or "", (0.0, ""))
        if reached > self._form.limit:
            return f"{what} reaches {reached:.3g}, and {end}"
        written = _written_constant(node)
        if written > self._form.limit:
            return f"its attribute holds {written:.3g}, and {end}"
        return None

    def _is_slack_bound(self, node: ir.Node, index: int) -> bool:
        """A bound that no half value reaches: it becomes infinite and bounds as little as before."""
        bound = constant_of(node.inputs[index]) if node.op_type in {"Clip", "Min", "Max"} and not node.domain else None
        if bound is None or bound.size > 1024:
            return False
        if node.op_type == "Clip":
            return bool(np.all(bound > 0)) if index == 2 else index == 1 and bool(np.all(bound < 0))
        outside = np.abs(bound) > self._form.limit
        return bool(np.all((bound > 0)[outside] if node.op_type == "Min" else (bound < 0)[outside]))

    def _small_reason(self, node: ir.Node) -> str | None:
        if node.domain:
            return None
        told = f"where {self._form.title} has too few digits"
        for index, value in enumerate(node.inputs):
            constant = self.constants.get(value) if value is not None else None
            if value is None or (constant is None and value not in self._small):
                continue
            if constant is None:
                if (
                    DIVISORS.get(node.op_type) == index
                    or self._evidence.peaks.get(value.name or "", 1.0) < self._coarse
                ):
                    return f"{value.name!r} gets as small as {self._small[value]:.3g}, {told}"
            elif 0.0 < constant.largest <= self._form.least / 2 and constant.smallest == constant.largest:
                if node.op_type in GUARDS and self._guard_matters(node, value):
                    return f"{value.name!r} is {constant.largest:.3g}, which {self._form.title} rounds to 0"
            elif 0.0 < constant.largest < self._coarse and node.op_type in SCALES:
                return f"{value.name!r} is at most {constant.largest:.3g}, {told}"
        for value in node.outputs:
            if value in self._small and is_single(value):
                return f"its result gets as small as {self._small[value]:.3g}, {told}"
        return None

    def _guard_matters(self, node: ir.Node, guard: ir.Value) -> bool:
        """Whether what the scalar is added to is divided by, and not known to stay away from 0 anyway."""
        known = self._evidence.smallest.get(node.outputs[0].name or "")
        divided = any(DIVISORS.get(use.node.op_type) == use.idx for use in node.outputs[0].uses())
        return divided and (known is None or known < self._coarse)

    def _counted_reason(self, node: ir.Node) -> str | None:
        if self._is_index_arithmetic(node):
            held = f"{self._form.title} holds only up to {self._form.integers}"
            return f"it computes with integers (sizes, positions, masks), which {held}"
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
            if value.name in self._evidence.peaks:
                continue
            if in_float and largest > self._form.limit and node.op_type in CARRIES_MAGNITUDE:
                self._beyond[value] = largest
        if in_float and node.op_type in {*GUARDS, "Sqrt"} and not node.domain:
            self._follow_guard(node)

    def _follow_guard(self, node: ir.Node) -> None:
        """A tiny scalar keeps a sum from 0: so small is the sum, too, as far as anyone knows."""
        guards = [c.largest for v in node.inputs if v is not None and (c := self.constants.get(v))]
        guards += [self._small[v] for v in node.inputs if v is not None and v in self._small]
        smallest = min((g for g in guards if g > 0), default=self._form.limit)
        smallest = smallest**0.5 if node.op_type == "Sqrt" else smallest
        out = node.outputs[0]
        if smallest < self._coarse and out.name not in self._evidence.smallest and is_single(out):
            self._small[out] = smallest


def _sources(node: ir.Node, size: float) -> list[tuple[ir.Value | None, float]]:
    """The inputs that a result of that magnitude comes from, with the magnitude that matters in them."""
    first = node.inputs[0] if node.inputs else None
    if node.op_type in {"Mul", "Pow", "ReduceSumSquare"}:
        exponent = constant_of(node.inputs[1]) if node.op_type == "Pow" else None
        squares = node.op_type == "ReduceSumSquare" or (node.op_type == "Mul" and node.inputs[0] is node.inputs[1])
        return [(first, size**0.5)] if squares or (exponent is not None and np.all(exponent == 2)) else []
    if node.op_type == "Sqrt":
        return [(first, size**2)]
    if node.op_type in {"Add", "Sub", "Max", "Clip"}:
        return [(value, size) for value in node.inputs]
    return [(first, size)] if node.op_type in SAME_SIZE else []


def _written_constant(node: ir.Node) -> float:
    """The largest finite magnitude that an attribute puts into the node's result."""
    if node.domain or node.op_type not in {"ConstantOfShape", "Pad"} or "value" not in node.attributes:
        return 0.0
    given = node.attributes["value"]
    array = given.as_tensor().numpy() if node.op_type == "ConstantOfShape" else np.float32(given.as_float())
    if array.dtype != np.float32:
        return 0.0
    size = np.abs(np.atleast_1d(array))
    return float(np.max(size[np.isfinite(size)], initial=0.0))


def crashes_onnxruntime(node: ir.Node) -> bool:
    """Whether it is a Transpose that onnxruntime dies on while loading the model, when the Transpose is in float16.

    Measured on 1.32 over every permutation of two to four dimensions: the first dimension moves inwards to the last or
    next to last place (a "batch transpose"), and a MatMul with a matrix reads the result. MatmulTransposeFusion leaves
    a node without a schema then, which NchwcTransformer reads: https://github.com/microsoft/onnxruntime/issues/28392
    """
    if node.op_type != "Transpose" or node.domain:
        return False
    order = list(node.attributes.get_ints("perm", ()) or ())
    rank = len(order)
    if rank < 3 or order[: rank - 2] != list(range(1, rank - 1)) or 0 not in order[rank - 2 :]:
        return False
    seen, todo = set(), [node.outputs[0]]
    while todo:
        value = todo.pop()
        for reader, _ in value.uses():
            if reader.domain or reader in seen:
                continue
            seen.add(reader)
            if reader.op_type == "MatMul":
                return True
            if reader.op_type in {"Identity", "Cast", "Dropout"}:
                todo.append(reader.outputs[0])
    return False
