"""Which nodes can compute in which other type: int64 in int32, small integers in int32 or float32, halves too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx_ir as ir

from deploykit.optimizers.rewrites.emitting import known_array
from deploykit.optimizers.rewrites.retyping import Retyping, TypeVariable
from deploykit.optimizers.rewrites.value_ranges import fits

if TYPE_CHECKING:
    from collections.abc import Sequence

# They give elements that they were given, whatever the type.
_PICKS = frozenset(
    {
        *(
            "Compress",
            "Concat",
            "DepthToSpace",
            "Expand",
            "Flatten",
            "Gather",
            "GatherElements",
            "GatherND",
            "Identity",
        ),
        *("Max", "MaxPool", "Min", "Pad", "Range", "ReduceMax", "ReduceMin", "Reshape", "ReverseSequence", "Scatter"),
        *("ScatterElements", "ScatterND", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "TopK", "Transpose"),
        *("Trilu", "Unique", "Unsqueeze", "Upsample", "Where", "Clip", "Relu", "OneHot", "CenterCropPad"),
    }
)
# They tell numbers apart, or order them: any type that holds the numbers gives the same answer.
_COMPARES = frozenset(
    {
        *("ArgMax", "ArgMin", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "NonZero", "Shape", "Size"),
        "TopK",
    }
)
# Their integers wrap around; in more bits, cut off afterwards, they come to the same.
_WRAPS = frozenset({"Add", "Sub", "Mul", "Neg", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor"})
# Integers by whose rules an operator divides are not floats.
_SUMS = frozenset({"Add", "Sub", "Mul", "Neg", "Abs", "Sign"})
# Positions of indices, which an operator refuses beyond the size of its data.
_INDICES = {"Gather": 1, "GatherElements": 1, "GatherND": 1, "ScatterElements": 1, "ScatterND": 1, "Scatter": 1}
# Slice cuts starts and ends off at the size of its data.
_CLAMPED = {"Slice": (1, 2)}
_SMALL = frozenset({ir.DataType.BOOL, ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16})


def _adds_up(node: ir.Node) -> bool:
    """A reduction other than none makes a scatter compute."""
    reduction = node.attributes.get("reduction")
    return reduction is not None and reduction.as_string() != "none"


class NarrowInt64(Retyping):
    """int64 in int32 where every value fits: constants by their values, others by how they come about.

    Shapes, positions and what is computed from them fit; so do indices from outside, since an operator refuses those
    beyond the size of its data. Ends of Slice beyond int32 are cut off there: both mean "to the end". Inputs and
    outputs of the model keep int64, behind a Cast.
    """

    name: ClassVar[str] = "narrow-int64"
    title: ClassVar[str] = "computes with int32 where int64 values fit"
    sources: ClassVar[frozenset[ir.DataType]] = frozenset({ir.DataType.INT64})
    target: ClassVar[ir.DataType] = ir.DataType.INT32

    def is_exact(self, node: ir.Node, variable: TypeVariable) -> bool:
        """Whether all inputs and outputs of the type fit in int32."""
        if not variable.inputs and (node.op_type != "ConstantOfShape" or "value" not in node.attributes):
            return False
        return all(self._input_fits(node, at) for at in variable.inputs) and all(
            fits(node.outputs[at], self.target) for at in variable.outputs
        )

    def _input_fits(self, node: ir.Node, at: int) -> bool:
        value, constant = node.inputs[at], known_array(node.inputs[at]) is not None
        if _INDICES.get(node.op_type) == at and not constant:
            return True
        return (constant and at in _CLAMPED.get(node.op_type, ())) or fits(value, self.target)

    def constant(self, node: ir.Node, at: int, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Cut off at int32's limits, which only Slice's ends ever reach."""
        del node, at
        info = np.iinfo(np.int32)
        narrow: np.ndarray[Any, Any] = np.clip(values, info.min, info.max).astype(np.int32)
        return narrow

    def skips(self, source: ir.Value, mid: ir.DataType, *, ours: bool) -> bool:
        """int32 as int64 and back."""
        del source, ours
        return mid == ir.DataType.INT64

    def keeps_numbers(self, node: ir.Node) -> bool:
        """Always: they fit."""
        del node
        return True

    def finish(self, node: ir.Node, variables: Sequence[TypeVariable]) -> None:
        """ConstantOfShape has its value, and with it its type, in an attribute."""
        del variables
        if node.op_type == "ConstantOfShape":
            values = node.attributes["value"].as_tensor().numpy().astype(np.int32)
            node.attributes["value"] = ir.AttrTensor("value", ir.tensor(values))


class SmallIntegersAsInt32(Retyping):
    """bool and integers of 8 and 16 bits in int32: operators that move, pick, compare or add."""

    name: ClassVar[str] = "small-integers-as-int32"
    title: ClassVar[str] = "computes with int32 what is bool or an integer of 8 or 16 bits"
    sources: ClassVar[frozenset[ir.DataType]] = _SMALL
    target: ClassVar[ir.DataType] = ir.DataType.INT32

    def is_exact(self, node: ir.Node, variable: TypeVariable) -> bool:
        """Whether the operator only picks, compares, or wraps around."""
        if variable.outputs:
            return node.op_type in _PICKS | _WRAPS and not _adds_up(node)
        return bool(variable.inputs) and node.op_type in _PICKS | _COMPARES

    def keeps_numbers(self, node: ir.Node) -> bool:
        """Unless more bits have to be cut off."""
        return node.op_type not in _WRAPS


class SmallIntegersAsFloat(SmallIntegersAsInt32):
    """bool and integers of 8 and 16 bits in float32, which holds them all: operators that move, pick or compare."""

    name: ClassVar[str] = "small-integers-as-float"
    title: ClassVar[str] = "computes with float32 what is bool or an integer of 8 or 16 bits"
    target: ClassVar[ir.DataType] = ir.DataType.FLOAT

    def is_exact(self, node: ir.Node, variable: TypeVariable) -> bool:
        """Whether the operator only picks or compares."""
        return node.op_type in _PICKS | _COMPARES and not _adds_up(node) and bool(variable.inputs)


class IntegersAsFloat(Retyping):
    """int32 and int64 in float32 where no value goes beyond 2^24: operators that move, pick, compare or add."""

    name: ClassVar[str] = "integers-as-float"
    title: ClassVar[str] = "computes with float32 what is an integer of up to 24 bits"
    sources: ClassVar[frozenset[ir.DataType]] = frozenset(
        {ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT32, ir.DataType.UINT64}
    )
    target: ClassVar[ir.DataType] = ir.DataType.FLOAT

    def is_exact(self, node: ir.Node, variable: TypeVariable) -> bool:
        """Whether all inputs and outputs are whole numbers that float32 holds, and the operator does not divide."""
        if node.op_type not in _PICKS | _COMPARES | _SUMS or not variable.inputs or _adds_up(node):
            return False
        values = [*(node.inputs[at] for at in variable.inputs), *(node.outputs[at] for at in variable.outputs)]
        return all(fits(value, self.target) for value in values)

    def keeps_numbers(self, node: ir.Node) -> bool:
        """Always: float32 has them all."""
        del node
        return True

    def skips(self, source: ir.Value, mid: ir.DataType, *, ours: bool) -> bool:
        """Whole numbers as integers and back."""
        del ours
        return mid in self.sources and fits(source, self.target)


class Int32AsInt64(Retyping):
    """32-bit integers in int64, for targets that have no other integers: operators that move, pick, compare or add."""

    name: ClassVar[str] = "int32-as-int64"
    title: ClassVar[str] = "computes with int64 what is an integer of 32 bits"
    sources: ClassVar[frozenset[ir.DataType]] = frozenset({ir.DataType.INT32, ir.DataType.UINT32})
    target: ClassVar[ir.DataType] = ir.DataType.INT64

    def is_exact(self, node: ir.Node, variable: TypeVariable) -> bool:
        """Whether the operator only picks, compares, or wraps around."""
        if variable.outputs:
            return node.op_type in _PICKS | _WRAPS and bool(variable.inputs) and not _adds_up(node)
        return bool(variable.inputs) and node.op_type in _PICKS | _COMPARES | _INDICES.keys()


class HalfAsFloat(Retyping):
    """float16 and bfloat16 in float32: nothing is lost on the way there, and one rounding on the way back."""

    name: ClassVar[str] = "half-as-float"
    title: ClassVar[str] = "computes with float32 what is float16 or bfloat16"
    sources: ClassVar[frozenset[ir.DataType]] = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
    target: ClassVar[ir.DataType] = ir.DataType.FLOAT
    bound: ClassVar[str] = "fp16"

    def is_exact(self, node: ir.Node, variable: TypeVariable) -> bool:
        """Always: every float16 is a float32."""
        del node
        return bool(variable.inputs)

    def skips(self, source: ir.Value, mid: ir.DataType, *, ours: bool) -> bool:
        """float32 as a half and back, between two such nodes: a rounding less. The model's own Casts stay."""
        del source
        return ours and mid in self.sources
