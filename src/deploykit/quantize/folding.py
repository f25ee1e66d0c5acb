"""Weights that a model takes apart and puts together again while it runs become constants, so that they can shrink."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from deploykit import graph
from deploykit.quantize.families import MAC_OPS, RECURRENT
from deploykit.quantize.places import Rewriter, places
from deploykit.quantize.prepare import constant_of, is_constant

if TYPE_CHECKING:
    from collections.abc import Iterator

Array = np.ndarray[Any, Any]
# They only move values: tracing turns an LSTM's gates into slices that are joined in another order, and a linear layer
# into a Transpose before a MatMul.
MOVES = frozenset({"Concat", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})


def fold_weights(model: ir.Model, *, recurrent: bool = True) -> int:
    """Computes the weight operands that only move constants around, in all graphs; returns how many there were.

    recurrent: those of LSTM, GRU and RNN too; left out where they stay float, since a folded copy only takes room.
    """
    rewriter = Rewriter(model)
    known: dict[int, Array | None] = {}
    opset = graph.opset(model)
    folded = 0
    for place in places(model.graph):
        node = place.node
        for index in _weight_inputs(node, recurrent=recurrent):
            value = node.inputs[index]
            if value is None or is_constant(value) or value.producer() is None:
                continue
            array = _moved(value, known, opset)
            if array is None or array.dtype != np.float32:
                continue
            made = rewriter.constant(f"{value.name}_folded", ir.Tensor(np.ascontiguousarray(array)), (id(value),))
            node.replace_input_with(index, made)
            folded += 1
            _drop_unused(value)
    if folded:
        rewriter.finish()
    return folded


def _weight_inputs(node: ir.Node, *, recurrent: bool) -> tuple[int, ...]:
    if node.domain:
        return ()
    if node.op_type in RECURRENT:
        return (1, 2) if recurrent else ()
    return (0, 1) if node.op_type in MAC_OPS else ()


def _moved(value: ir.Value, known: dict[int, Array | None], opset: int) -> Array | None:
    """The value when only constants move into it, otherwise None."""
    constant = constant_of(value)
    if constant is not None:
        return constant
    if id(value) not in known:
        known[id(value)] = _computed(value, known, opset)
    return known[id(value)]


def _computed(value: ir.Value, known: dict[int, Array | None], opset: int) -> Array | None:
    producer = value.producer()
    if producer is None or producer.domain or producer.op_type not in MOVES or len(producer.outputs) != 1:
        return None
    feeds: dict[str, Array] = {}
    for source in producer.inputs:
        if source is None:
            continue
        found = _moved(source, known, opset)
        if found is None:
            return None
        feeds[source.name or ""] = found
    made = ReferenceEvaluator(ir.to_proto(producer), opsets={"": opset}).run(None, feeds)
    return np.asarray(made[0])


def _drop_unused(value: ir.Value) -> None:
    """Removes what computed the value, as far as nothing else reads it."""
    for node in _unread(value):
        assert node.graph is not None
        node.graph.remove(node, safe=True)


def _unread(value: ir.Value) -> Iterator[ir.Node]:
    pending = [value]
    while pending:
        current = pending.pop()
        producer = current.producer()
        if producer is None or producer.graph is None or current.uses() or current.is_graph_output():
            continue
        sources = [source for source in producer.inputs if source is not None]
        yield producer
        pending.extend(sources)
