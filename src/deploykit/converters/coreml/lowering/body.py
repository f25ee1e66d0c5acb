"""Operators that ONNX defines by simpler ones: their function bodies, lowered node by node.

The onnx package builds the body for the node at hand, since some depend on its attributes and inputs. Only what the
outputs in use need is lowered. A node of the body that has no lowering refuses the operator, by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from onnx import FunctionProto, ModelProto, TypeProto, defs, helper, numpy_helper

from deploykit import graph
from deploykit.converters.coreml.lowering.context import REGISTRY, Environment, OpContext, Refused, lowers
from deploykit.converters.coreml.lowering.node import Node
from deploykit.graph.signature import constant_of
from deploykit.opsupport.verdict import Verdict, supported, unknown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coremltools.converters.mil.mil import Var

    from deploykit.converters.coreml.ranks import Wide

_REMEDY = "export the operator in simpler ones, or with another opset"


def _ranked(node: Node) -> Verdict:
    given = [position for position in range(node.input_count) if node.has(position)]
    if any(node.rank(position) is None for position in given):
        return unknown("the rank of an input is unknown", remedy="export with a known rank")
    return supported()


@lowers("Attention", since=(23, 24, 25), when=_ranked)
@lowers("SoftmaxCrossEntropyLoss", since=(12, 13), when=_ranked)
@lowers("NegativeLogLikelihoodLoss", since=(12, 13, 22), when=_ranked)
@lowers("RotaryEmbedding", since=23, when=_ranked)
@lowers("LinearAttention", "CausalConvWithState", since=27, when=_ranked)
@lowers("CenterCropPad", since=18, when=_ranked)
@lowers("MeanVarianceNormalization", since=(9, 13), when=_ranked)
@lowers("SwiGLU", since=28, when=_ranked)
def by_body(op: OpContext) -> tuple[Var | None, ...]:
    """As the onnx package's own function body defines it.

    None for outputs that the node leaves out.
    """
    model, values = _body_model(op)
    environment = Environment()
    for value in model.graph.inputs:
        environment.bind(value, op.input(values[value.name or ""]))
    lower_graph(model.graph, op, environment, graph.opset(model))
    made = iter([environment.variable(value) for value in model.graph.outputs])
    return tuple(next(made) if op.raw.outputs[place].name else None for place in range(op.used_outputs))


def _function(op: OpContext) -> FunctionProto:
    """The body for this node. Refused: an operator that has none in this revision."""
    schema = defs.get_schema(op.op, max_inclusive_version=op.opset, domain=op.raw.domain)
    function = FunctionProto()
    if schema.has_function:
        versions = [version for version in schema.function_opset_versions if version <= op.opset]
        if versions:
            function.ParseFromString(schema.get_function_with_opset_version(max(versions)))
            return function
    elif schema.has_context_dependent_function:
        versions = [v for v in schema.context_dependent_function_opset_versions if v <= op.opset]
        if versions:
            node = ir.serde.serialize_node(op.raw).SerializeToString()
            types = [_type(op, position).SerializeToString() for position in range(op.input_count)]
            made = schema.get_context_dependent_function_with_opset_version(max(versions), node, types)
            function.ParseFromString(made)
            return function
    raise Refused("ONNX gives it no function body in this opset", _REMEDY)


def _type(op: OpContext, position: int) -> TypeProto:
    if not op.has(position):
        return TypeProto()
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(op.dtype(position) or "float32"))
    sizes = op.shape(position)
    return helper.make_tensor_type_proto(kind, None if sizes is None else list(sizes))


def _body_model(op: OpContext) -> tuple[ir.Model, dict[str, int]]:
    """The body as a model of its own, types inferred; and which input of the node each of its inputs is.

    What is fixed outside is fixed inside, in the type that ONNX gives it.
    """
    function = _function(op)
    positions = {name: place for place, name in enumerate(function.input) if place < op.input_count and op.has(place)}
    absent = set(function.input) - set(positions)
    nodes = [_resolved(node, op, function, absent) for node in function.node]
    inputs, fixed = [], []
    for name, place in positions.items():
        known = op.constant(place)
        if known is not None:
            fixed.append(numpy_helper.from_array(known.astype(op.dtype(place) or known.dtype), name))
        else:
            inputs.append(helper.make_value_info(name, _type(op, place)))
    outputs = [
        helper.make_empty_tensor_value_info(function.output[place])
        for place in range(op.used_outputs)
        if op.raw.outputs[place].name
    ]
    model: ModelProto = helper.make_model(
        helper.make_graph(nodes, "body", inputs, outputs, fixed), opset_imports=list(function.opset_import)
    )
    return graph.infer_shapes(ir.serde.deserialize_model(model)), positions


def _resolved(node: Any, op: OpContext, function: FunctionProto, absent: set[str]) -> Any:
    """A node of the body without the inputs that are not given, and with the node's own attributes in it."""
    from onnx import AttributeProto, NodeProto

    made = NodeProto()
    made.CopyFrom(node)
    del made.input[:]
    made.input.extend("" if name in absent else name for name in node.input)
    schema = defs.get_schema(op.op, max_inclusive_version=op.opset, domain=op.raw.domain)
    del made.attribute[:]
    for attribute in node.attribute:
        source = attribute
        if attribute.ref_attr_name:
            given = op.raw.attributes.get(attribute.ref_attr_name)
            source = (
                ir.serde.serialize_attribute(given)
                if given is not None
                else schema.attributes[attribute.ref_attr_name].default_value
            )
            if not source.name:  # it has no default: the body's node goes without
                continue
        copied = AttributeProto()
        copied.CopyFrom(source)
        if copied.HasField("g"):
            inner = [_resolved(part, op, function, absent) for part in copied.g.node]
            del copied.g.node[:]
            copied.g.node.extend(inner)
        copied.name = attribute.name
        made.attribute.append(_as_tensor(copied) if node.op_type == "Constant" else copied)
    return made


def _as_tensor(attribute: Any) -> Any:
    """A Constant's value in the one form that everything downstream reads."""
    if attribute.name == "value":
        return attribute
    value = helper.get_attribute_value(attribute)
    kinds = {"value_int": np.int64, "value_ints": np.int64, "value_float": np.float32, "value_floats": np.float32}
    return helper.make_attribute("value", numpy_helper.from_array(np.asarray(value, kinds[attribute.name])))


def lower_graph(body: ir.Graph, op: OpContext, environment: Environment, opset: int) -> None:
    """Lowers, in order, the nodes that the outputs of a body or branch depend on."""
    for raw in _needed(body):
        node = Node(raw, opset, op.dims)
        if raw.op_type == "Constant" and constant_of(raw.outputs[0]) is not None:
            continue
        for value, variable in zip(raw.outputs, lower_inner(node, environment), strict=False):
            if variable is not None:
                environment.bind(value, variable)


def lower_inner(node: Node, environment: Environment) -> tuple[Var | Wide | None, ...]:
    """One node of a body or a branch. Refused with its own reason, the operator named."""
    entry = REGISTRY.lookup(node.raw.domain, node.op, node.opset)
    if entry is None:
        raise Refused(f"it is made of {node.op} too, which has no lowering", _REMEDY)
    from deploykit.converters.coreml import ranks_lowering  # it lowers on views with this very function
    from deploykit.converters.coreml.integers import check_folded

    context = OpContext(node, environment)
    if ranks_lowering.is_wide(context):
        return ranks_lowering.lower(context)
    if entry.when is not None:
        found = entry.when(context)
        if not found.runs:
            raise Refused(f"it is made of {node.op} too: {found.reason}", found.remedy)
    try:
        made = entry.function(context)
    except Refused as problem:
        raise Refused(f"it is made of {node.op} too: {problem.verdict.reason}", problem.verdict.remedy) from problem
    results = made if isinstance(made, tuple) else (made,)
    check_folded(context, results)
    return results


def _needed(body: ir.Graph) -> list[ir.Node]:
    """In their order; what a branch inside reads of this graph counts as read."""
    own = set(body)
    kept: set[ir.Node] = set()
    waiting = [value.producer() for value in body.outputs]
    while waiting:
        node = waiting.pop()
        if node is None or node not in own or node in kept:
            continue
        kept.add(node)
        waiting += [value.producer() for value in node.inputs if value is not None]
        for inner in _inside(node):
            waiting += [value.producer() for value in inner.inputs if value is not None]
            waiting += [value.producer() for value in inner.graph.outputs] if inner.graph is not None else []
    return [node for node in body if node in kept]


def _inside(node: ir.Node) -> Iterator[ir.Node]:
    for attribute in node.attributes.values():
        if attribute.type is ir.AttributeType.GRAPH:
            for inner in attribute.as_graph():
                yield inner
                yield from _inside(inner)
