"""Inputs that follow from constants alone, computed once: targets want weights, axes and shapes as initializers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from deploykit import graph
from deploykit.graph.signature import constant_of
from deploykit.optimizers.rewriting import Change, Rewrite

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

# Elements that an input may have once it is computed, unless it replaces as many: the file must not grow by it.
_LARGEST = 65_536
# What more nodes compute is hardly a constant: this many are looked through for each input.
_MOST_NODES = 100
_KEPT = frozenset(
    {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Dropout", "Bernoulli", "Multinomial"}
    | {"RandomNormalLike", "RandomUniformLike"}
)


class ConstantInputs(Rewrite):
    """A Conv whose weight is `Transpose(initializer)` gets the transposed initializer; so with axes, sizes and shapes.

    Random nodes, custom ones and those with bodies are never computed.
    """

    name: ClassVar[str] = "constant-inputs"
    title: ClassVar[str] = "computes inputs that depend on constants only"
    keeps_operator: ClassVar[bool] = True

    def applies(self, node: ir.Node, model: ir.Model) -> bool:
        """Whether an input is computed from constants."""
        return not _in_function(node, model) and bool(_computable(node))

    def apply(self, model: ir.Model, nodes: Sequence[ir.Node]) -> list[Change]:
        """Gives each such input an initializer of its own; the nodes that nobody reads any more go."""
        changes = []
        for node in nodes:
            if _in_function(node, model):
                continue
            found = _computable(node)
            behind = list({id(before): before for _, ancestors in found for before in ancestors}.values())
            for index, ancestors in found:
                _replace(node, index, ancestors, graph.opset(model))
            gone = _remove_unused(behind)
            if found:
                text = f"{node.op_type} {node.name!r} reads computed constants in place of {', '.join(gone) or 'nodes'}"
                changes.append(Change(gone, (), text))
        graph.name_nodes(model)
        return changes


def _in_function(node: ir.Node, model: ir.Model) -> bool:
    """Whether it stands in the body of a function, which can have no initializers."""
    return any(node.graph is function.graph for function in model.functions.values())


def _computable(node: ir.Node) -> list[tuple[int, list[ir.Node]]]:
    """Each input that follows from constants and stays small, with the nodes that compute it, first things first."""
    found = []
    for index, value in enumerate(node.inputs):
        ancestors = [] if value is None or _is_stored(value) else _ancestors(value)
        if not ancestors:
            continue
        limit = max(_LARGEST, _elements(ancestors))
        made = [output for before in ancestors for output in before.outputs]
        if all(_is_small(output, limit) for output in made):
            found.append((index, ancestors))
    return found


def _is_small(value: ir.Value, limit: int) -> bool:
    """Whether it is a tensor of a known size up to this many elements."""
    if value.shape is None or not value.shape.is_static() or type(value.type).__name__ != "TensorType":
        return False
    return math.prod(value.shape.numpy()) <= limit


def _ancestors(value: ir.Value) -> list[ir.Node]:
    """The nodes that compute a value from constants, each after those that it reads; none where it does not follow.

    A default of an input is what it is until a caller gives another.
    """
    ordered: dict[int, ir.Node] = {}
    pending = [value.producer()]
    while pending:
        node = pending[-1]
        if node is None or len(pending) + len(ordered) > _MOST_NODES or not _is_computable(node):
            return []
        if id(node) in ordered:
            pending.pop()
            continue
        given = [v for v in node.inputs if v is not None and (v.is_graph_input() or not _is_stored(v))]
        if any(v.producer() is None for v in given):
            return []
        unmet = [producer for v in given if (producer := v.producer()) is not None and id(producer) not in ordered]
        if unmet:
            pending += unmet
            continue
        ordered[id(node)] = node
        pending.pop()
    return list(ordered.values())


def _is_stored(value: ir.Value) -> bool:
    """Whether it is an initializer or a Constant's tensor, as `constant_of` gives them, which takes longer to ask."""
    producer = value.producer()
    if producer is None:
        return value.const_value is not None
    return producer.op_type == "Constant" and "value" in producer.attributes


def _is_computable(node: ir.Node) -> bool:
    """Whether its inputs decide what it gives, and the graph is to lose it: quantization is to stay."""
    standard = node.domain in ("", "ai.onnx") and (bool(node.inputs) or node.op_type == "Constant")
    return standard and node.op_type not in _KEPT and not any(a.type.name == "GRAPH" for a in node.attributes.values())


def _elements(nodes: Sequence[ir.Node]) -> int:
    """Of all constants that these nodes read."""
    known = {id(value): constant_of(value) for node in nodes for value in node.inputs if value is not None}
    return sum(tensor.size for tensor in known.values() if tensor is not None)


def _replace(node: ir.Node, index: int, ancestors: Sequence[ir.Node], opset: int) -> None:
    """Computes an input with the standard's own definitions and puts the result in its place."""
    import onnx_ir as ir
    from onnx import TensorProto, helper
    from onnx.reference import ReferenceEvaluator

    value, owner = node.inputs[index], node.graph
    if value is None or not isinstance(owner, ir.Graph):
        return
    given = {v.name: constant_of(v) for before in ancestors for v in before.inputs if v is not None and v.name}
    constants = [(name, tensor) for name, tensor in given.items() if tensor is not None]
    protos = []
    for name, tensor in constants:
        proto = ir.serde.serialize_tensor(ir.Tensor(tensor.numpy(), name=name, dtype=tensor.dtype))
        proto.name = name
        protos.append(proto)
    made = helper.make_graph(
        [ir.serde.serialize_node(before) for before in ancestors],
        "constant",
        [],
        [helper.make_tensor_value_info(value.name or "", int(value.dtype or TensorProto.FLOAT), None)],
        initializer=protos,
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)])
    (result,) = ReferenceEvaluator(model).run(None, {})
    computed = ir.Value(
        name=f"{node.name}/{value.name}",
        shape=ir.Shape(result.shape),
        type=ir.TensorType(value.dtype) if value.dtype is not None else None,
        const_value=ir.Tensor(result, name=f"{node.name}/{value.name}", dtype=value.dtype),
    )
    owner.register_initializer(computed)
    node.replace_input_with(index, computed)


def _remove_unused(nodes: Sequence[ir.Node]) -> tuple[str, ...]:
    """Takes those out whose results nobody reads, last ones first; returns their names."""
    gone = []
    for node in reversed(nodes):
        used = any(output.uses() or output.is_graph_output() for output in node.outputs)
        if not used and node.graph is not None:
            node.graph.remove(node, safe=True)
            gone.append(node.name or node.op_type)
    return tuple(reversed(gone))
