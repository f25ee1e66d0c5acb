"""Constants in place of what fixed sizes decide: onnx2tf guesses at shapes that nodes compute (in the environment)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]

_MOST_ELEMENTS = 1024  # a shape, an index; not weights, which would be stored once more
_RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout"}
)


def folded(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without the nodes that compute shapes, and what follows from these, where every size is known.

    What a Shape gives is known as soon as its input's sizes are, which may follow from the shape before: so until
    nothing changes. Values are ONNX Runtime's.
    """
    while True:
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
        graph = model.graph
        types = {value.name: value for value in (*graph.value_info, *graph.input)}
        constants = {tensor.name: tensor for tensor in graph.initializer}
        kept = []
        for node in graph.node:
            values = _known(node, types, constants, model)
            if values is None:
                kept.append(node)
                continue
            for name, value in values.items():
                constants[name] = numpy_helper.from_array(value, name)
                graph.initializer.append(constants[name])
        if len(kept) == len(graph.node):
            return model
        del graph.node[:]
        graph.node.extend(kept)


def _known(
    node: onnx.NodeProto,
    types: dict[str, onnx.ValueInfoProto],
    constants: dict[str, onnx.TensorProto],
    model: onnx.ModelProto,
) -> dict[str, Array] | None:
    """What the node gives whatever the inputs are; None where that is not known, or much."""
    if node.domain not in ("", "ai.onnx") or node.op_type in _RANDOM:
        return None
    if node.op_type == "Shape":
        sizes = _sizes(types.get(node.input[0]))
        if sizes is None:
            return None
        given = {attribute.name: attribute.i for attribute in node.attribute}
        return {node.output[0]: np.array(sizes, np.int64)[given.get("start", 0) : given.get("end")]}
    read = [name for name in node.input if name]
    if any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
        return None
    if not read or any(name not in constants or np.prod(constants[name].dims) > _MOST_ELEMENTS for name in read):
        return None
    names = [name for name in node.output if name]
    part = helper.make_graph(
        [node], "known", [], [onnx.ValueInfoProto(name=name) for name in names], [constants[name] for name in read]
    )
    whole = helper.make_model(part, opset_imports=model.opset_import, ir_version=10)
    try:
        found = ort.InferenceSession(whole.SerializeToString(), providers=["CPUExecutionProvider"]).run(names, {})
    except Exception:  # onnxruntime's errors have no common class; the node stays, and is refused where it stands
        return None
    if any(not isinstance(value, np.ndarray) or value.size > _MOST_ELEMENTS for value in found):
        return None
    return dict(zip(names, found, strict=True))


def _sizes(value: onnx.ValueInfoProto | None) -> list[int] | None:
    if value is None or not value.type.tensor_type.HasField("shape"):
        return None
    dims = value.type.tensor_type.shape.dim
    return [dim.dim_value for dim in dims] if all(dim.HasField("dim_value") for dim in dims) else None
