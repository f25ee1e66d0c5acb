"""Where skl2onnx 1.20 writes something else, or less exact, than the model computes: put right in the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from deploykit import graph
from deploykit.exporters.sklearn_parts import parts

if TYPE_CHECKING:
    from collections.abc import Sequence

# The axes of a reduction are an attribute before this opset, and an input from it on.
_AXES_AS_INPUT = 13


def repair_probabilities(model: ir.Model, estimator: Any) -> None:
    """Two-class LinearDiscriminantAnalysis has the sigmoid of its scores, and skl2onnx writes a softmax over -s and s.

    The softmax of (-s, s) is the sigmoid of 2s. The node is known by its coefficients.
    """
    weights = [
        np.ravel(part.coef_).astype(np.float32)
        for _, part in parts(estimator)
        if type(part).__name__ == "LinearDiscriminantAnalysis" and len(part.classes_) == 2
    ]
    for node in graph.all_nodes(model):
        if node.op_type != "LinearClassifier" or not weights:
            continue
        coefficients = np.asarray(node.attributes["coefficients"].as_floats(), np.float32)
        if any(np.array_equal(coefficients[len(coefficients) // 2 :], wanted) for wanted in weights):
            node.attributes["post_transform"] = ir.AttrString("post_transform", "LOGISTIC")


def repair_distances(model: ir.Model, estimator: Any) -> None:
    """Distances to the centers of KMeans as the root of sum((x - c)^2).

    skl2onnx writes x^2 - 2xc + c^2, which cancels near a center in float32: the root of what is left is off in the
    fourth digit, or of a negative number.
    """
    centers = [
        np.asarray(part.cluster_centers_)
        for _, part in parts(estimator)
        if type(part).__name__ in ("KMeans", "MiniBatchKMeans", "BisectingKMeans")
    ]
    for node in list(graph.all_nodes(model)):
        if node.op_type != "Gemm" or not centers:
            continue
        held = node.inputs[1].const_value if node.inputs[1] is not None else None
        found = None if held is None else held.numpy()
        if found is None or not any(np.array_equal(found, wanted.astype(found.dtype)) for wanted in centers):
            continue
        total = _only_sum(_only_sum(node.outputs[0]))
        if total is not None and node.inputs[0] is not None:
            _write_distances(model, node.inputs[0], found, total)


def _only_sum(value: ir.Value | None) -> ir.Value | None:
    """The result of the one addition that takes the value."""
    users = [] if value is None else list(value.uses())
    return users[0].node.outputs[0] if len(users) == 1 and users[0].node.op_type == "Add" else None


def _write_distances(model: ir.Model, x: ir.Value, centers: np.ndarray[Any, Any], total: ir.Value) -> None:
    """Puts sum((x[:, None] - centers)^2, over the features) in the place of `total`."""
    features = centers.shape[1]
    shape = _constant(model.graph, "distance_shape", np.array([-1, 1, features], np.int64))
    rows = ir.node("Reshape", [x, shape])
    away = ir.node("Sub", [rows.outputs[0], _constant(model.graph, "distance_centers", centers[None])])
    square = ir.node("Mul", [away.outputs[0], away.outputs[0]])
    if graph.opset(model) >= _AXES_AS_INPUT:
        axes = _constant(model.graph, "distance_axes", np.array([2], np.int64))
        summed = ir.node("ReduceSum", [square.outputs[0], axes], {"keepdims": 0})
    else:
        summed = ir.node("ReduceSum", [square.outputs[0]], {"axes": [2], "keepdims": 0})
    producer = total.producer()
    if producer is not None:
        model.graph.insert_after(producer, [rows, away, square, summed])
        _replace_uses(total, summed.outputs[0])


def _replace_uses(old: ir.Value, new: ir.Value) -> None:
    for use in list(old.uses()):
        use.node.replace_input_with(use.idx, new)


def _constant(owner: ir.Graph, name: str, array: np.ndarray[Any, Any]) -> ir.Value:
    taken: Sequence[str] = list(owner.initializers)
    unique = name if name not in taken else f"{name}_{len(taken)}"
    tensor = ir.tensor(array, name=unique)
    value = ir.Value(name=unique, const_value=tensor, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape))
    owner.register_initializer(value)
    return value
