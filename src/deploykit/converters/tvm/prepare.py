"""The ONNX graph as TVM's importer takes it: sizes that follow from the inputs as constants, recurrences written out.

What is made of the changed graph is compared with the unchanged one, as everything is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir
from onnx_ir.passes import common as passes

from deploykit import graph
from deploykit.converters.folding import fold_sizes
from deploykit.converters.recurrent import write_out
from deploykit.converters.tvm.long_short import write_out_lstm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deploykit.artifact import TensorSpec


def prepare(model: ir.Model, inputs: Sequence[TensorSpec]) -> None:
    """Changes the graph in place. inputs: the interface, with a number for each dimension that has one size only."""
    _fix_sizes(model, inputs)
    if model.functions:
        passes.InlinePass()(model)
    fold_sizes(model)
    write_out(model)
    write_out_lstm(model)
    fold_sizes(model)
    passes.RemoveUnusedNodesPass()(model)
    # Its importer reads the type of an input, and infers all others.
    for node in graph.all_nodes(model):
        for value in node.outputs:
            if not value.is_graph_output():
                value.shape = None


def _fix_sizes(model: ir.Model, inputs: Sequence[TensorSpec]) -> None:
    shapes = {spec.name: spec.shape for spec in inputs}
    for value in model.graph.inputs:
        shape = shapes.get(value.name or "")
        if shape is not None:
            value.shape = ir.Shape(list(shape))
    if all(isinstance(size, int) for shape in shapes.values() for size in shape or ("?",)):
        for value in model.graph.outputs:
            value.shape = None
    for node in graph.all_nodes(model):
        for value in node.outputs:
            if not value.is_graph_output():
                value.shape = None
