"""A part of a graph as a model of its own: what makes some tensors out of others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from deploykit.graph.extraction import functions_of, read_by

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]


def part_of(model: ir.Model, names: Sequence[str], given: Mapping[str, Array] | None = None) -> ir.Model:
    """The nodes that make the named tensors, with those as outputs; the model itself is left as it is.

    names: tensors that nodes of the main graph make. given: tensors that are inputs of the part, of the type and shape
    of these arrays, in place of what makes them. Inputs of the model that the part needs stay inputs; weights are
    shared with the model. Raises KeyError for a name that no node makes.
    """
    given = given or {}
    made = {value.name: value for node in model.graph for value in node.outputs if value.name}
    wanted = [made[name] for name in dict.fromkeys(names)]
    inputs, initializers, nodes = _walk(model.graph, wanted, set(given))
    scope = ir.GraphView(
        inputs,
        wanted,
        nodes=nodes,
        initializers=initializers,
        opset_imports=dict(model.graph.opset_imports or model.opset_imports),
        name=model.graph.name,
    ).clone()
    for value in scope.inputs:
        array = given.get(value.name or "")
        if array is not None:
            value.type = ir.TensorType(ir.tensor(array[:0] if array.ndim else array).dtype)
            value.shape = ir.Shape(array.shape)
    return ir.Model(
        scope,
        ir_version=model.ir_version,
        producer_name=model.producer_name,
        producer_version=model.producer_version,
        functions=[function.clone() for function in functions_of(model, scope)],
    )


def _walk(
    graph: ir.Graph, wanted: Sequence[ir.Value], given: set[str]
) -> tuple[list[ir.Value], list[ir.Value], list[ir.Node]]:
    """What a part needs: inputs in the graph's order with the given ones behind, initializers, nodes in order."""
    needed: set[ir.Node] = set()
    inputs: dict[ir.Value, None] = {}
    initializers: dict[ir.Value, None] = {}
    pending = list(wanted)
    targets = set(wanted)
    while pending:
        value = pending.pop()
        producer = value.producer()
        if value.name in given and value not in targets:
            inputs[value] = None
        elif producer is not None:
            if producer not in needed:
                needed.add(producer)
                pending += read_by(producer)
        elif value.is_initializer():
            initializers[value] = None
            if value.is_graph_input():
                inputs[value] = None
        else:
            inputs[value] = None
    own = [value for value in graph.inputs if value in inputs]
    rest = sorted(
        (value for value in inputs if value not in own), key=lambda value: list(given).index(value.name or "")
    )
    return [*own, *rest], list(initializers), [node for node in graph if node in needed]
