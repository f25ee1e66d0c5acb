"""Outputs as users of a model expect them: tensors, called after what they are, each with the method it answers for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deploykit.exporters.sklearn_source import Array

LABEL, PROBABILITIES, SCORES, VALUE = "label", "probabilities", "scores", "variable"


def methods(model: Any) -> dict[str, str]:
    """The model's method by the output's name, in the order of skl2onnx's outputs."""
    if not hasattr(model, "predict"):
        return {VALUE: "transform"}
    if getattr(model, "_estimator_type", None) == "regressor" or _is_regressor(model):
        return {VALUE: "predict"}
    if hasattr(model, "predict_proba"):
        return {LABEL: "predict", PROBABILITIES: "predict_proba"}
    if hasattr(model, "decision_function"):
        return {LABEL: "predict", SCORES: "decision_function"}
    if hasattr(model, "transform") and not hasattr(model, "voting"):
        return {LABEL: "predict", SCORES: "transform"}
    return {LABEL: "predict"}


def _is_regressor(model: Any) -> bool:
    from sklearn.base import is_regressor

    return bool(is_regressor(model))


def settle(model: ir.Model, estimator: Any) -> list[str]:
    """Names the outputs, makes sequences tensors, drops what no method answers for; returns what was dropped."""
    graph, known = model.graph, list(methods(estimator))
    if len(graph.outputs) == 1 and len(known) > 1:
        known = known[:1]
    outputs = list(graph.outputs)
    names = iter(known)
    graph.outputs.clear()
    dropped = []
    taken = {str(value.name) for value in graph.inputs}
    for value in outputs:
        name = next(names, None)
        if name is None:
            dropped.append(str(value.name))
            continue
        tensors = _tensors(value)
        for at, tensor in enumerate(tensors):
            new = name if len(tensors) == 1 else f"{name}_{at}"
            if tensor.is_graph_input() or tensor in graph.outputs:
                tensor = _copied(graph, tensor)
            _free(graph, new, tensor)
            tensor.name = f"{new}_output" if new in taken else new
            graph.outputs.append(tensor)
    return dropped


def _tensors(value: ir.Value) -> list[ir.Value]:
    """The tensor behind a sequence of maps, or the members of a sequence."""
    node = value.producer()
    if node is not None and node.op_type == "ZipMap" and node.inputs[0] is not None:
        return [node.inputs[0]]
    if node is not None and node.op_type == "SequenceConstruct":
        return [member for member in node.inputs if member is not None]
    return [value]


def _copied(graph: ir.Graph, value: ir.Value) -> ir.Value:
    node = ir.node("Identity", [value])
    graph.append(node)
    node.outputs[0].type = value.type
    return node.outputs[0]


def _free(graph: ir.Graph, name: str, keeper: ir.Value) -> None:
    """Another value of this name gets another one: the outputs' names are the users'."""
    for node in graph:
        for value in node.outputs:
            if value.name == name and value is not keeper:
                value.name = f"{name}_inner"


def take_column(model: ir.Model, name: str, column: int) -> None:
    """Makes an output [batch, 2] of mirrored scores the one column that the model's own method gives, as [batch, 1]."""
    graph = model.graph
    at = next(at for at, value in enumerate(graph.outputs) if value.name == name)
    old = graph.outputs[at]
    index = ir.tensor(np.array([column], np.int64), name=f"{name}_column")
    initializer = ir.Value(name=index.name, const_value=index, type=ir.TensorType(index.dtype), shape=ir.Shape([1]))
    graph.register_initializer(initializer)
    node = ir.node("Gather", [old, initializer], {"axis": 1})
    graph.append(node)
    new = node.outputs[0]
    new.type = old.type
    old.name, new.name = f"{name}_both", name
    graph.outputs[at] = new


def flatten_labels(model: ir.Model, name: str) -> None:
    """Makes a label output [batch, 1] or [1, batch] the [batch] that `predict` gives."""
    graph = model.graph
    at = next(at for at, value in enumerate(graph.outputs) if value.name == name)
    old = graph.outputs[at]
    shape = ir.tensor(np.array([-1], np.int64), name=f"{name}_shape")
    initializer = ir.Value(name=shape.name, const_value=shape, type=ir.TensorType(shape.dtype), shape=ir.Shape([1]))
    graph.register_initializer(initializer)
    node = ir.node("Reshape", [old, initializer])
    graph.append(node)
    new = node.outputs[0]
    new.type = old.type
    old.name, new.name = f"{name}_rows", name
    graph.outputs[at] = new


def expected(name: str, wanted: Mapping[str, str], answers: Mapping[str, Any], like: Array) -> Array:
    """The model's answer for an output, in the output's form: [rows] as [rows, 1], a list of matrices as its member.

    like: what the file gave. A stacked output (a matrix a target) has zeros where targets have fewer classes.
    """
    base = name.removesuffix("_output")
    stem, _, number = base.rpartition("_")
    answer = answers[wanted[base]] if base in wanted else answers[wanted[stem]][int(number)]
    if isinstance(answer, list):
        made = np.zeros(like.shape, like.dtype)
        for at, member in enumerate(answer):
            if at < len(made) and member.shape[0] == like.shape[1]:
                made[at, :, : member.shape[1]] = member
        return made
    if answer.dtype == object or answer.dtype.kind == "U":
        answer = answer.astype(str).astype(object) if like.dtype.kind in "OUS" else answer.astype(np.float64)
    if like.dtype.kind in "iu" and answer.dtype.kind in "fb":
        answer = answer.astype(np.int64)
    if like.dtype.kind == answer.dtype.kind and like.dtype.kind in "iuf":
        answer = answer.astype(like.dtype)  # int32 of KMeans, and doubles: widths are the file's
    return np.asarray(answer.reshape(like.shape) if answer.size == like.size else answer)
