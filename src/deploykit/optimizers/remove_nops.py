"""Removes nodes whose result is their input."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from deploykit.optimizers.constants import Constants
from deploykit.optimizers.editing import (
    bypass,
    input_at,
    integer,
    integers,
    nodes_of,
    once_run,
    rank_of,
    standard_opset,
    static_shape,
)
from deploykit.optimizers.manager import INFERRED_SHAPES, Pass

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx_ir as ir

_SHORT = 64
# Where `Slice` ends when it means "to the end": exporters write these.
_FAR = np.iinfo(np.int32).max


class RemoveNops(Pass):
    """Removes nodes that change nothing.

    Identity, Dropout at inference, operators of many inputs with one; Cast, Reshape, Expand, Slice, Pad, Transpose,
    Tile that leave dtype, shape and values as they are. Names of graph outputs stay: a node that makes one is removed
    only when its input can take over the name.
    """

    requires = (INFERRED_SHAPES,)

    def run(self, model: ir.Model) -> bool:
        """Whether anything was removed."""
        constants, opset = Constants(model), standard_opset(model)
        shaped = {id(node) for node in once_run(model)}
        changed = False
        for node in nodes_of(model, *_NOPS):
            since, needs_shapes, test = _NOPS[node.op_type]
            if opset < since or not node.inputs or node.inputs[0] is None or (needs_shapes and id(node) not in shaped):
                continue
            if test(node, constants):
                changed = bypass(node) or changed
        return changed


def _dropout(node: ir.Node, constants: Constants) -> bool:
    """At inference, and nobody reads the mask."""
    if len(node.outputs) > 1 and (node.outputs[1].uses() or node.outputs[1].is_graph_output()):
        return False
    training = input_at(node, 2)
    if training is None:
        return integer(node, "is_test", 1) == 1
    known = constants.array(training, 1)
    return known is not None and not bool(known.any())


def _cast(node: ir.Node, constants: Constants) -> bool:
    del constants
    source, to = node.inputs[0], node.attributes.get("to")
    if source is None or source.dtype is None or to is None or to.is_ref():
        return False
    return bool(to.value == int(source.dtype))


def _reshape(node: ir.Node, constants: Constants) -> bool:
    """From one shape to the same one, all sizes known but one at most."""
    source, output = node.inputs[0], node.outputs[0]
    known = static_shape(source), static_shape(output)
    if known[0] is not None and known[0] == known[1]:
        return True
    wanted = constants.integers(input_at(node, 1), _SHORT)
    if wanted is None or source is None or source.shape is None or len(wanted) != len(source.shape):
        return False
    if integer(node, "allowzero"):
        return False
    # 0 is "as it was"; the one -1 follows from the others, which are as they were.
    return (
        0 not in (known[0] or ())
        and wanted.count(-1) <= 1
        and all(size in (0, -1) or size == dim for size, dim in zip(wanted, source.shape, strict=True))
    )


def _expand(node: ir.Node, constants: Constants) -> bool:
    source, wanted = node.inputs[0], constants.integers(input_at(node, 1), _SHORT)
    if wanted is None or source is None or source.shape is None or len(wanted) > len(source.shape):
        return False
    dims = list(source.shape)[len(source.shape) - len(wanted) :]
    return all(size == 1 or size == dim for size, dim in zip(wanted, dims, strict=True))


def _slice(node: ir.Node, constants: Constants) -> bool:
    """From 0 to the end in steps of 1, on every axis."""
    source = node.inputs[0]
    starts, ends = (constants.integers(input_at(node, at), _SHORT) for at in (1, 2))
    steps = constants.integers(node.inputs[4], _SHORT) if input_at(node, 4) is not None else [1]
    if starts is None or ends is None or steps is None or any(starts) or any(step != 1 for step in steps):
        return False
    axes = list(range(len(ends)))
    if input_at(node, 3) is not None:
        given = constants.integers(node.inputs[3], _SHORT)
        if given is None:
            return False
        axes = given
    for axis, end in zip(axes, ends, strict=True):
        if end >= _FAR:
            continue
        rank = rank_of(source)
        dim = source.shape[axis] if source is not None and source.shape is not None and rank and axis < rank else None
        if not isinstance(dim, int) or end < dim:
            return False
    return True


def _pad(node: ir.Node, constants: Constants) -> bool:
    pads = constants.integers(input_at(node, 1), _SHORT)
    return pads is not None and not any(pads)


def _transpose(node: ir.Node, constants: Constants) -> bool:
    del constants
    order, rank = integers(node, "perm"), rank_of(node.inputs[0])
    return order == list(range(len(order))) if order is not None else rank in (0, 1)


def _tile(node: ir.Node, constants: Constants) -> bool:
    counts = constants.integers(input_at(node, 1), _SHORT)
    return counts is not None and all(count == 1 for count in counts)


def _single(node: ir.Node, constants: Constants) -> bool:
    del constants
    return len(node.inputs) == 1


# Operator: opset from which on its inputs are as read here, whether the test reads inferred shapes, the test.
_NOPS: dict[str, tuple[int, bool, Callable[[ir.Node, Constants], bool]]] = {
    "Identity": (1, False, _single),
    "Dropout": (1, False, _dropout),
    "Cast": (6, False, _cast),
    "Reshape": (5, True, _reshape),
    "Expand": (8, True, _expand),
    "Slice": (10, True, _slice),
    "Pad": (11, False, _pad),
    "Transpose": (1, True, _transpose),
    "Tile": (6, False, _tile),
    "Concat": (4, False, _single),
    "Sum": (1, False, _single),
    "Max": (1, False, _single),
    "Min": (1, False, _single),
    "Mean": (1, False, _single),
}
