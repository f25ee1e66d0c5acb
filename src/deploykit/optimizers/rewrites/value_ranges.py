"""What integers a value can hold, told from how it comes about: interval arithmetic over the graph."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from deploykit.optimizers.editing import input_at, rank_of, static_shape
from deploykit.optimizers.rewrites.emitting import known_array, size_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

Range = tuple[int, int]

# No tensor has more elements along one dimension: the runtimes that narrow indices count with int32 themselves.
LARGEST_SIZE = 2**31 - 1
_SIZES: Range = (0, LARGEST_SIZE)
# float32 has every whole number in between.
_COUNTS: Range = (-(2**24), 2**24)
# Of whole numbers in floats these make others.
_DIVIDES = ("Div", "Mod", "ReduceSum", "Range")
_DEPTH = 200
_BOUNDED = {
    ir.DataType.BOOL: (0, 1),
    ir.DataType.INT8: (-128, 127),
    ir.DataType.UINT8: (0, 255),
    ir.DataType.INT16: (-(2**15), 2**15 - 1),
    ir.DataType.UINT16: (0, 2**16 - 1),
    ir.DataType.INT32: (-(2**31), 2**31 - 1),
    ir.DataType.UINT32: (0, 2**32 - 1),
    ir.DataType.INT64: (-(2**63), 2**63 - 1),
    ir.DataType.UINT64: (0, 2**64 - 1),
}
# They give elements of their first input, or of those listed.
_PICKS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(
        (
            *(
                "Identity",
                "Reshape",
                "Transpose",
                "Squeeze",
                "Unsqueeze",
                "Flatten",
                "Slice",
                "Gather",
                "GatherElements",
            ),
            *(
                "GatherND",
                "Expand",
                "Tile",
                "Split",
                "ReduceMax",
                "ReduceMin",
                "DepthToSpace",
                "SpaceToDepth",
                "Compress",
            ),
            *("ReverseSequence", "MaxPool"),
        ),
        (0,),
    ),
    "Where": (1, 2),
    "ScatterElements": (0, 2),
    "ScatterND": (0, 2),
}
_STANDARD = ("", "ai.onnx")


def range_of(value: ir.Value | None, depth: int = 0) -> Range | None:
    """Lowest and highest integer that a value can hold; None when it cannot be told, or may not be a whole number.

    What comes in from outside has the range of its type. Floats have one where they come from integers.
    """
    if value is None or depth > _DEPTH:
        return None
    constant = known_array(value)
    if constant is not None:
        return _of_array(constant)
    known = _BOUNDED.get(value.dtype) if value.dtype is not None else None
    node = value.producer()
    if node is None or node.domain not in _STANDARD:
        return known
    computed = _computed(node, value, depth + 1)
    if computed is None or known is None:
        return computed or known
    # What leaves the type wraps around: then all of it is possible.
    return computed if known[0] <= computed[0] and computed[1] <= known[1] else known


def fits(value: ir.Value | None, dtype: ir.DataType) -> bool:
    """Whether every integer that the value can hold is one of the type (float32: up to 2^24, which it counts)."""
    limits = _COUNTS if dtype == ir.DataType.FLOAT else _BOUNDED[dtype]
    found = range_of(value)
    return found is not None and limits[0] <= found[0] and found[1] <= limits[1]


def _of_array(array: np.ndarray[Any, Any]) -> Range | None:
    if array.dtype.kind not in "biuf" or (array.dtype.kind == "f" and not np.array_equal(array, np.rint(array))):
        return None
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return None
    return (int(array.min()), int(array.max())) if array.size else (0, 0)


def _computed(node: ir.Node, value: ir.Value, depth: int) -> Range | None:
    if node.op_type in _PICKS:
        return _union([range_of(input_at(node, at), depth) for at in _PICKS[node.op_type]])
    if node.op_type == "Concat":
        return _union([range_of(given, depth) for given in node.inputs])
    rule = _RULES.get(node.op_type)
    if rule is None or (value.dtype not in _BOUNDED and node.op_type in _DIVIDES):
        return None
    return rule(node, value, depth)


def _union(ranges: Sequence[Range | None]) -> Range | None:
    known = [found for found in ranges if found is not None]
    if not known or len(known) < len(ranges):
        return None
    return min(low for low, _ in known), max(high for _, high in known)


def _pair(node: ir.Node, depth: int) -> tuple[Range, Range] | None:
    a, b = (range_of(input_at(node, at), depth) for at in (0, 1))
    return None if a is None or b is None else (a, b)


def _shape(node: ir.Node, value: ir.Value, depth: int) -> Range | None:
    del value, depth
    sizes = static_shape(input_at(node, 0))
    return _SIZES if sizes is None else (min(sizes, default=0), max(sizes, default=0))


def _size(node: ir.Node, value: ir.Value, depth: int) -> Range | None:
    del value, depth
    sizes = static_shape(input_at(node, 0))
    return None if sizes is None else (math.prod(sizes), math.prod(sizes))


def _position(node: ir.Node, value: ir.Value, depth: int) -> Range | None:
    """ArgMax and the like: a position along a dimension."""
    del value, depth
    axis = node.attributes.get("axis")
    given = input_at(node, 0)
    size = None if given is None else size_of(given, 0 if axis is None else axis.as_int())
    return _SIZES if size is None else (0, max(0, size - 1))


def _indices(node: ir.Node, value: ir.Value, depth: int) -> Range | None:
    """NonZero, and the second output of TopK: positions; the first output of TopK are elements."""
    if node.op_type == "TopK" and value.index() == 0:
        return range_of(input_at(node, 0), depth)
    return _SIZES


def _add(node: ir.Node, value: ir.Value, depth: int) -> Range | None:
    del value
    both = _pair(node, depth)
    return None if both is None else (both[0][0] + both[1][0], both[0][1] + both[1][1])


def _sub(node: ir.Node, value: ir.Value, depth: int) -> Range | None:
    del value
    both = _pair(node, depth)
    return None if both is None else (both[0][0] - both[1][1], both[0][1] - both[1][0])


def _mul(node: ir.Node, value: ir.Value, depth: int) -> Range | None:
    del value
    both = _pair(node, depth)
    if both is None:
        return None
    corners = [a * b for a in both[0] for b in both[1]]
    return min(corners), max(corners)


def _div(node: ir.Node, value: ir.Value, depth: int) -> Range | None:
    """Towards zero, and never by zero: no result is further from zero than the number that is divided."""
    del value
    both = _pair(node, depth)
    if both is None:
        return None
    (low, high), (least, most) = both
    if least > 0:
        corners = [int(math.copysign(abs(a) // b, a)) for a in (low, high) for b in (least, most)]
        return min(corners), max(corners)
    reach = max(abs(low), abs(high))
    return -reach, reach


def _mod(node: ir.Node, value: ir.Value, depth: int) -> Range | None:
    del value
    divisor = range_of(input_at(node, 1), depth)
    if divisor is None:
        return None
    reach = max(abs(divisor[0]), abs(divisor[1])) - 1
    fmod = node.attributes.get("fmod")
    if fmod is not None and fmod.as_int():
        return -reach, reach
    return (-reach if divisor[0] < 0 else 0), (reach if divisor[1] > 0 else 0)


def _neg(node: ir.Node, value: ir.Value, depth: int) -> Range | None:
    del value
    found = range_of(input_at(node, 0), depth)
    return None if found is None else (-found[1], -found[0])


def _abs(node: ir.Node, value: ir.Value, depth: int) -> Range | None:
    del value
    found = range_of(input_at(node, 0), depth)
    if found is None:
        return None
    low, high = found
    return (0 if low <= 0 <= high else min(abs(low), abs(high))), max(abs(low), abs(high))


def _sign(node: ir.Node, value: ir.Value, depth: int) -> Range | None:
    del node, value, depth
    return -1, 1


def _min(node: ir.Node, value: ir.Value, depth: int) -> Range | None:
    del value
    found = [range_of(given, depth) for given in node.inputs]
    known = [part for part in found if part is not None]
    if not known or len(known) < len(found):
        return None
    return min(low for low, _ in known), min(high for _, high in known)


def _max(node: ir.Node, value: ir.Value, depth: int) -> Range | None:
    del value
    found = [range_of(given, depth) for given in node.inputs]
    known = [part for part in found if part is not None]
    if not known or len(known) < len(found):
        return None
    return max(low for low, _ in known), max(high for _, high in known)


def _clip(node: ir.Node, value: ir.Value, depth: int) -> Range | None:
    """Between its bounds when both are given, whatever comes in."""
    del value
    found = range_of(input_at(node, 0), depth)
    low, high = range_of(input_at(node, 1), depth), range_of(input_at(node, 2), depth)
    if low is not None and high is not None:
        return min(low[0], high[0]), high[1]
    return None if found is None else _union([found, *(bound for bound in (low, high) if bound is not None)])


def _cast(node: ir.Node, value: ir.Value, depth: int) -> Range | None:
    """Of an integer: the same number when its type holds it."""
    found = range_of(input_at(node, 0), depth)
    limits = None if value.dtype is None else {**_BOUNDED, ir.DataType.FLOAT: _COUNTS}.get(value.dtype)
    if found is None or limits is None or value.dtype == ir.DataType.BOOL:
        return None
    return found if limits[0] <= found[0] and found[1] <= limits[1] else None


def _range(node: ir.Node, value: ir.Value, depth: int) -> Range | None:
    del value
    start, limit = (range_of(input_at(node, at), depth) for at in (0, 1))
    return _union([start, limit])


def _constant_of_shape(node: ir.Node, value: ir.Value, depth: int) -> Range | None:
    del value, depth
    given = node.attributes.get("value")
    return (0, 0) if given is None or given.is_ref() else _of_array(given.as_tensor().numpy())


def _pad(node: ir.Node, value: ir.Value, depth: int) -> Range | None:
    del value
    filler = input_at(node, 2)
    zero: Range | None = (0, 0)
    return _union([range_of(input_at(node, 0), depth), zero if filler is None else range_of(filler, depth)])


def _reduce_sum(node: ir.Node, value: ir.Value, depth: int) -> Range | None:
    """At most as many as there are elements."""
    del value
    found, sizes = range_of(input_at(node, 0), depth), static_shape(input_at(node, 0))
    if found is None or sizes is None or rank_of(input_at(node, 0)) is None:
        return None
    count = math.prod(sizes)
    return min(found[0] * count, found[0], 0), max(found[1] * count, found[1], 0)


_RULES: dict[str, Callable[[ir.Node, ir.Value, int], Range | None]] = {
    "Abs": _abs,
    "Add": _add,
    "ArgMax": _position,
    "ArgMin": _position,
    "Cast": _cast,
    "Clip": _clip,
    "ConstantOfShape": _constant_of_shape,
    "Div": _div,
    "Max": _max,
    "Min": _min,
    "Mod": _mod,
    "Mul": _mul,
    "Neg": _neg,
    "NonMaxSuppression": _indices,
    "NonZero": _indices,
    "Pad": _pad,
    "Range": _range,
    "ReduceSum": _reduce_sum,
    "Shape": _shape,
    "Sign": _sign,
    "Size": _size,
    "Sub": _sub,
    "TopK": _indices,
}
