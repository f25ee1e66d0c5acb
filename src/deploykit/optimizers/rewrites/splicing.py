"""Copies of bodies: a function's for its call, a branch's for its If, a loop's for each of its turns."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from deploykit.graph.signature import constant_of
from deploykit.optimizers.editing import static_shape
from deploykit.optimizers.rewrites.emitting import bodies_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.optimizers.rewrites.emitting import Emitter

# Results of constant nodes up to this size are put in their place.
_LARGEST = 4096


def splice_graph(
    emitter: Emitter, body: ir.Graph, inputs: Sequence[ir.Value | None], attributes: Mapping[str, ir.Attr] | None = None
) -> list[ir.Value]:
    """Puts a copy of a body among the emitter's nodes, reading `inputs`; returns what stands for its outputs.

    attributes: what references to a function's attributes mean (None: the body is none of a function).
    """
    clone = body.clone(allow_outer_scope_values=True)
    outputs = list(clone.outputs)
    clone.outputs.clear()
    meaning: dict[ir.Value, ir.Value | None] = {}
    formal = list(clone.inputs)
    for at, value in enumerate(formal):
        meaning[value] = inputs[at] if at < len(inputs) else None
    for value in list(clone.initializers.values()):
        if value not in meaning and value.const_value is not None:
            meaning[value] = emitter.tensor(_copy(value.const_value))
    for value, actual in meaning.items():
        _use_instead(value, actual)
    nodes = list(clone)
    clone.remove(nodes)
    for node in nodes:
        if attributes is not None:
            _resolve(node, attributes)
        folded = _constant_result(node, emitter)
        if folded is None:
            emitter.nodes.append(node)
            continue
        meaning[node.outputs[0]] = folded
        _use_instead(node.outputs[0], folded)
        for at in range(len(node.inputs)):
            node.replace_input_with(at, None)
    found = [meaning.get(value, value) for value in outputs]
    if any(value is None for value in found):
        raise ValueError("an output of the body is an input that is left out")
    return [value for value in found if value is not None]


def _copy(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """The same content under a name of its own: naming a value names its tensor, which the original body has, too."""
    if isinstance(tensor, ir.ExternalTensor) or tensor.dtype == ir.DataType.STRING:
        return copy.copy(tensor)
    return ir.tensor(tensor.numpy(), dtype=tensor.dtype)


def _use_instead(value: ir.Value, actual: ir.Value | None) -> None:
    if actual is not None:
        value.replace_all_uses_with(actual)
        return
    for use in list(value.uses()):
        use.node.replace_input_with(use.idx, None)


def _resolve(node: ir.Node, attributes: Mapping[str, ir.Attr]) -> None:
    """Gives attributes that refer to the function's their values; those that the call leaves out go."""
    for name, attribute in list(node.attributes.items()):
        if not attribute.is_ref():
            continue
        given = attributes.get(attribute.ref_attr_name or "")
        if given is None:
            del node.attributes[name]
        else:
            node.attributes[name] = ir.Attr(name, given.type, given.value)
    for body in bodies_of(node):
        for inner in body:
            _resolve(inner, attributes)


def _constant_result(node: ir.Node, emitter: Emitter) -> ir.Value | None:
    """The result of a node that depends on nothing, as a constant: bodies make their numbers from attributes."""
    if node.domain not in ("", "ai.onnx") or len(node.outputs) != 1:
        return None
    if node.op_type == "Constant":
        # The library turns value_ints and the like into tensors; strings stay nodes.
        array = _evaluate(node, [])
        return None if array is None else emitter.tensor(_tensor_of(node, array))
    if node.op_type == "Shape" and not node.attributes:
        shape = static_shape(node.inputs[0])
        return None if shape is None else emitter.ints(shape)
    target = node.inputs[1] if node.op_type == "CastLike" and len(node.inputs) > 1 else None
    if target is not None and target.dtype is not None:
        return _cast_like(node, target.dtype, emitter)
    if node.op_type not in _FOLDED or any(value is None for value in node.inputs):
        return None
    tensors = [constant_of(value) for value in node.inputs]
    if not tensors or any(tensor is None or tensor.size > _LARGEST for tensor in tensors):
        return None
    array = _evaluate(node, [tensor.numpy() for tensor in tensors if tensor is not None])
    return None if array is None else emitter.const(array)


def _cast_like(node: ir.Node, dtype: ir.DataType, emitter: Emitter) -> ir.Value | None:
    """A constant of the type, or the Cast that it means."""
    value = node.inputs[0]
    tensor = constant_of(value)
    if tensor is not None and tensor.size <= _LARGEST and tensor.dtype not in _PACKED and dtype not in _PACKED:
        return emitter.const(tensor.numpy(), dtype)
    if value is None or dtype in _PACKED:
        return None
    return emitter.op("Cast", value, to=dtype)


def _evaluate(node: ir.Node, arrays: Sequence[Any]) -> Any:
    import onnx
    from onnx.reference import ReferenceEvaluator

    if any(attribute.is_ref() for attribute in node.attributes.values()):
        return None
    names = [f"i{at}" for at in range(len(arrays))]
    proto = onnx.helper.make_node(node.op_type, names, ["o"])
    proto.attribute.extend(ir.serde.serialize_attribute(attribute) for attribute in node.attributes.values())
    body = onnx.helper.make_graph(
        [proto],
        "constant",
        [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in names],
        [onnx.helper.make_value_info("o", onnx.TypeProto())],
    )
    model = onnx.helper.make_model(body, opset_imports=[onnx.helper.make_opsetid("", 18)])
    try:
        result = ReferenceEvaluator(model).run(None, dict(zip(names, arrays, strict=True)))[0]
    except Exception:  # the evaluator's own classes: what it cannot compute stays a node
        return None
    return result if getattr(result, "size", _LARGEST + 1) <= _LARGEST and result.dtype.kind != "O" else None


def _tensor_of(node: ir.Node, array: Any) -> ir.TensorProtocol:
    value = node.attributes.get("value")
    return ir.tensor(array) if value is None else value.as_tensor()


_PACKED = {ir.DataType.INT4, ir.DataType.UINT4, ir.DataType.FLOAT4E2M1, ir.DataType.STRING, ir.DataType.UNDEFINED}
_FOLDED = frozenset(
    {
        "Add", "Cast", "Concat", "ConstantOfShape", "Div", "Exp", "Gather", "Greater", "Identity", "Less", "Mul", "Neg",
        "Pow", "Reciprocal", "Reshape", "Shape", "Size", "Slice", "Sqrt", "Squeeze", "Sub", "Unsqueeze",
    }
)  # fmt: skip
