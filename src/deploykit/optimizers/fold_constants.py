"""Computes what does not depend on the inputs, as far as the file does not grow by it."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from deploykit.optimizers.constants import Constants
from deploykit.optimizers.editing import nodes_of, put, standard_opset
from deploykit.optimizers.manager import INFERRED_SHAPES, Pass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from deploykit.optimizers.constants import Array

# Deterministic, with one result, and cheap for what they read. Quantization is not here: its scales would be lost.
_BROADCASTING = (
    *("Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod"),
    *("Mul", "Or", "Pow", "Sub", "Sum", "Where", "Xor"),
)
_PICKING = ("Gather", "GatherElements", "GatherND")
_FOLDED = frozenset(
    (
        *_BROADCASTING,
        *_PICKING,
        *("Abs", "Ceil", "Clip", "Cos", "Erf", "Exp", "Floor", "IsInf", "IsNaN", "Log", "Neg", "Not", "Reciprocal"),
        *("Relu", "Round", "Sigmoid", "Sign", "Sin", "Softmax", "Sqrt", "Tanh"),
        *("ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "CumSum", "MatMul"),
        *(
            "Cast",
            "CastLike",
            "Compress",
            "Concat",
            "Flatten",
            "Identity",
            "NonZero",
            "Pad",
            "Reshape",
            "Shape",
            "Size",
        ),
        *("ScatterElements", "ScatterND", "Slice", "Squeeze", "Transpose", "Trilu", "Unsqueeze"),
        *("ConstantOfShape", "Expand", "Range", "Tile"),
    )
)
# What is computed on the way may be larger than what is stored in the end, up to this.
_LARGEST_ON_THE_WAY = 16 << 20
# A product of matrices takes more time than it has elements; weights are not multiplied with one another here.
_LARGEST_PRODUCT = 1 << 20
_SOFTMAX_OF_ONE_AXIS = 13
_NODE_BYTES = 64  # a node in a file, with its names
_SMALLEST_BUDGET = 4096


class FoldConstants(Pass):
    """Replaces nodes that depend on constants only by their result.

    A result may take the place of the constants that nobody reads any more. Beyond that the file may grow by `budget`
    bytes in all, a quarter of it for one result: what makes much out of little (ConstantOfShape, Expand, Tile, a cast
    of int8 weights) stays computed. Results are sized before they are computed. Random nodes and quantization stay.

    Computed with the standard's own definitions (onnx.reference). onnxscript's folding has a limit of elements only,
    and replaces some sequence operators by nodes of another opset.
    """

    requires = (INFERRED_SHAPES,)

    def __init__(self, budget: int = _SMALLEST_BUDGET) -> None:
        self.budget = max(budget, _SMALLEST_BUDGET)
        self._largest = self.budget // 4

    def run(self, model: ir.Model) -> bool:
        """Whether anything was folded."""
        work = _Folding(model)
        for node in nodes_of(model):
            work.try_node(node)
        self.budget -= work.settle(self.budget, self._largest)
        return work.replace()


class _Folding:
    """Results by value, until it is decided which of them are stored."""

    def __init__(self, model: ir.Model) -> None:
        self._constants = Constants(model)
        self._version = standard_opset(model)
        self._known: dict[ir.Value, Array] = {}
        self._folded: dict[ir.Node, None] = {}

    def _array(self, value: ir.Value) -> Array | None:
        found = self._known.get(value)
        return self._constants.array(value) if found is None else found

    def try_node(self, node: ir.Node) -> None:
        dtype = node.outputs[0].dtype if len(node.outputs) == 1 else None
        # How numbers are written as text is not the same everywhere; Softmax was another operator before version 13.
        if node.op_type not in _FOLDED or dtype is None or dtype == ir.DataType.STRING:
            return
        if node.op_type == "Softmax" and self._version < _SOFTMAX_OF_ONE_AXIS:
            return
        if any(given.is_ref() for given in node.attributes.values()):
            return
        tensors = [None if v is None else self._known.get(v, self._constants.tensor(v)) for v in node.inputs]
        if any(v is not None and t is None for v, t in zip(node.inputs, tensors, strict=True)):
            return
        if not tensors or any(isinstance(t, ir.TensorProtocol) and not _plain(t) for t in tensors):
            return
        read = sum(tensor.nbytes for tensor in tensors if tensor is not None)
        arrays = [None if v is None else self._array(v) for v in node.inputs]
        if _size(node, arrays) > max(_LARGEST_ON_THE_WAY, read):
            return
        result = _computed(node, self._version, arrays)
        if result is None or np.dtype(dtype.numpy()) != result.dtype or not _is_exact(node, arrays, result):
            return
        self._known[node.outputs[0]] = result
        self._folded[node] = None

    def settle(self, budget: int, largest: int) -> int:
        """Takes results back that would enlarge the file; returns the bytes by which the others do."""
        while True:
            spent, refused = 0, []
            freed: set[ir.Value] = set()
            for value, array in self._known.items():
                if not self._is_stored(value):
                    continue
                gained, nodes = self._freed(value, freed)
                extra = max(0, array.nbytes - gained - nodes * _NODE_BYTES)
                if extra > largest or spent + extra > budget:
                    refused.append(value)
                else:
                    spent += extra
            if not refused:
                return spent
            for value in refused:
                self._forget(value)

    def _is_stored(self, value: ir.Value) -> bool:
        """Whether something reads the result that is not computed here."""
        return value.is_graph_output() or any(use.node not in self._folded for use in value.uses())

    def _forget(self, value: ir.Value) -> None:
        node = value.producer()
        if node is not None:
            self._folded.pop(node, None)
        self._known.pop(value, None)

    def _freed(self, value: ir.Value, counted: set[ir.Value]) -> tuple[int, int]:
        """Bytes of constants that nobody reads once the value is stored, and nodes that go with it."""
        total, seen, waiting = 0, set(), [value]
        while waiting:
            node = waiting.pop().producer()
            if node is None or node not in self._folded or node in seen:
                continue
            seen.add(node)
            for given in node.inputs:
                if given is None:
                    continue
                if given in self._known:
                    waiting.append(given)
                elif given not in counted and all(use.node in self._folded for use in given.uses()):
                    counted.add(given)
                    tensor = self._constants.tensor(given)
                    total += tensor.nbytes if tensor is not None and not given.is_graph_output() else 0
        return total, len(seen)

    def replace(self) -> bool:
        """Puts the results that others read in the place of their nodes; says whether there was one."""
        changed = False
        for value, array in self._known.items():
            node = value.producer()
            if node is None or not self._is_stored(value):
                continue
            if value.is_graph_output():
                tensor = ir.Tensor(np.ascontiguousarray(array).reshape(array.shape))
                self._folded.pop(node)
                put(node, "Constant", [], {"value": ir.AttrTensor("value", tensor)})
            else:
                value.replace_all_uses_with(self._constants.add(node, array, value.name or "folded"))
            changed = True
        for node in reversed(list(self._folded)):
            if node.graph is not None and not any(output.uses() for output in node.outputs):
                node.graph.remove(node, safe=True)
                changed = True
        return changed


def _plain(tensor: ir.TensorProtocol) -> bool:
    """Types that numpy computes with as the standard says."""
    return tensor.dtype == ir.DataType.BOOL or (
        tensor.dtype != ir.DataType.STRING and tensor.dtype.numpy().kind in "iuf"
    )


def _is_exact(node: ir.Node, arrays: Sequence[Array | None], result: Array) -> bool:
    """False for powers that integers of this type may not hold: engines compute them in floats."""
    if node.op_type != "Pow" or result.dtype.kind not in "iu":
        return True
    given = [array.astype(np.float64) for array in arrays if array is not None]
    with np.errstate(all="ignore"):
        return bool((np.abs(np.power(*given)) < np.iinfo(np.int32).max).all())


def _computed(node: ir.Node, version: int, arrays: Sequence[Array | None]) -> Array | None:
    """The node's result by the standard's definition; None where that has none."""
    from onnx.reference.ops import load_op

    attributes: dict[str, Any] = {
        name: ir.serde.serialize_tensor(given.as_tensor()) if given.type == ir.AttributeType.TENSOR else given.value
        for name, given in node.attributes.items()
    }
    try:
        with np.errstate(all="ignore"):
            result = load_op("", node.op_type, version).eval(*arrays, **attributes)
    except Exception as problem:  # whatever the definition raises on odd inputs: the node stays, and engines judge it
        logging.getLogger(__name__).debug("%s is not folded: %s", node.name, problem)
        return None
    if isinstance(result, (tuple, list)):
        result = result[0]
    return np.asarray(result)


def _size(node: ir.Node, arrays: Sequence[Array | None]) -> int:
    """Bytes of the result at most; more than any limit for what is not worth its time."""
    given = [array for array in arrays if array is not None]
    elements = result_size(node, given)
    if elements is None:
        elements = math.prod(max(1, array.size) for array in given) if node.op_type in _PICKING else None
        if node.op_type == "MatMul" and sum(array.size for array in given) > _LARGEST_PRODUCT:
            return _LARGEST_ON_THE_WAY * _LARGEST_ON_THE_WAY
        if elements is None:
            elements = sum(array.size for array in given)
    width = node.outputs[0].dtype
    return elements * (math.ceil(width.itemsize) if width is not None else 8)


def result_size(node: ir.Node, arrays: Sequence[Array]) -> int | None:
    """Elements of the result of a node whose inputs say how much it makes; None for other operators."""
    rule = _SIZES.get(node.op_type)
    if rule is None:
        return None
    try:
        return rule(*arrays)
    except (TypeError, ValueError, IndexError):  # inputs that the operator does not take
        return None


def _broadcast(*arrays: Array) -> int:
    return math.prod(np.broadcast_shapes(*(array.shape for array in arrays)))


def _matrix_product(a: Array, b: Array) -> int:
    rows, columns = (a.shape[-2] if a.ndim > 1 else 1), (b.shape[-1] if b.ndim > 1 else 1)
    return rows * columns * math.prod(np.broadcast_shapes(a.shape[:-2], b.shape[:-2]))


def _range(start: Array, limit: Array, delta: Array) -> int:
    step = float(delta.item())
    return max(0, math.ceil((float(limit.item()) - float(start.item())) / step)) if step else 0


def _padded(data: Array, pads: Array, *rest: Array) -> int:
    del rest
    return (data.size + 1) * math.prod(1 + abs(int(size)) for size in pads.ravel())


_SIZES: dict[str, Callable[..., int]] = {
    "ConstantOfShape": lambda sizes: math.prod(int(size) for size in sizes.ravel()),
    "Expand": lambda data, sizes: data.size * max(1, math.prod(int(size) for size in sizes.ravel())),
    "Tile": lambda data, counts: data.size * math.prod(int(count) for count in counts.ravel()),
    "Range": _range,
    "Pad": _padded,
    "MatMul": _matrix_product,
    **dict.fromkeys(_BROADCASTING, _broadcast),
}
