"""Multiply-accumulates at the sizes that the data has, where the model leaves dimensions open."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from deploykit import graph
from deploykit.graph.counting import node_macs
from deploykit.quantize.calibration import tapped_session

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from deploykit.data import Sample


def macs_of_sample(model: ir.Model, sample: Sample) -> dict[str, int]:
    """MACs by node name for one sample, from the shapes that onnxruntime gives; those of bodies as `graph.macs` does.

    Without open dimensions the shapes of the model say it, and nothing is run.
    """
    counted = graph.macs(model)
    nodes = [node for node in model.graph if node_macs(node)]
    values = {
        value.name or "": value
        for node in nodes
        for value in (*node.inputs, *node.outputs)
        if value is not None and value.name and value.const_value is None and _open(value)
    }
    if not values:
        return counted
    inputs = {value.name for value in model.graph.inputs}
    shapes = {name: sample.feeds[name].shape for name in values if name in sample.feeds}
    wanted = [name for name in values if name not in inputs]
    with tapped_session(model, wanted) as session:
        found: list[np.ndarray] = session.run(wanted, dict(sample.feeds))
    shapes |= {name: array.shape for name, array in zip(wanted, found, strict=True)}
    return counted | _recounted(model, nodes, values, shapes)


def _recounted(
    model: ir.Model, nodes: list[ir.Node], values: Mapping[str, ir.Value], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, int]:
    """Counts with the shapes in place; the model's own come back."""
    before = {name: value.shape for name, value in values.items()}
    try:
        for name, shape in shapes.items():
            values[name].shape = ir.Shape(shape)
        return {node.name or "": node_macs(node) for node in nodes}
    finally:
        for name, value in values.items():
            value.shape = before[name]


def _open(value: ir.Value) -> bool:
    return value.shape is None or not value.shape.is_static()
