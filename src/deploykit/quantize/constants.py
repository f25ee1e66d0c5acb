"""Constants behind a Reshape, Transpose or the like: computed once, so that they are plain constants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir

from deploykit import graph
from deploykit.quantize.prepare import add_constant, constant_of, drop_unused_initializers, is_constant, names_in

if TYPE_CHECKING:
    from collections.abc import Iterator

Array = np.ndarray[Any, Any]
# They keep the number of elements, so that the model does not grow.
MOVES = frozenset({"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})


def fold_moves(model: ir.Model) -> int:
    """Computes the nodes of the main graph that only move constants; returns how many there were."""
    main = model.graph
    taken = names_in(model)
    folded = 0
    for node in _movers(main):
        arrays = [constant_of(value) for value in node.inputs]
        if any(array is None for array in arrays):
            continue
        out = node.outputs[0]
        made = _computed(node, [np.asarray(array) for array in arrays], graph.opset(model))
        out.replace_all_uses_with(add_constant(main, f"{out.name}_folded", made, taken))
        main.remove(node, safe=True)
        folded += 1
    if folded:
        drop_unused_initializers(main)
    return folded


def _movers(main: ir.Graph) -> Iterator[ir.Node]:
    """Found one by one: folding one makes the next constant."""
    for node in list(main):
        if node.op_type not in MOVES or node.domain or not node.inputs or len(node.outputs) != 1:
            continue
        if all(is_constant(value) for value in node.inputs) and not node.outputs[0].is_graph_output():
            yield node


def _computed(node: ir.Node, arrays: list[Array], opset: int) -> Array:
    names = [f"i{index}" for index in range(len(arrays))]
    attributes = [ir.to_proto(attribute) for attribute in node.attributes.values()]
    single = onnx.NodeProto(op_type=node.op_type, input=names, output=["o"], attribute=attributes)
    body = onnx.helper.make_graph(
        [single],
        "moves",
        [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in names],
        [onnx.helper.make_value_info("o", onnx.TypeProto())],
    )
    from onnx.reference import ReferenceEvaluator  # slow to import, and rarely needed

    whole = onnx.helper.make_model(body, opset_imports=[onnx.helper.make_opsetid("", opset)])
    found: Array = np.asarray(ReferenceEvaluator(whole).run(None, dict(zip(names, arrays, strict=True)))[0])
    return found
