"""`--layout`: image tensors of a graph in another order of their axes, by a Transpose at its edge."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from deploykit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.artifact import TensorSpec
    from deploykit.runtime import Feeds, Outputs

# Axis order that makes one layout of the other.
_ORDER = {"nchw": (0, 3, 1, 2), "nhwc": (0, 2, 3, 1)}
_OTHER = {"nchw": "nhwc", "nhwc": "nchw"}
_RANK = 4


def changed(wanted: Mapping[str, str], there: Mapping[str, str], specs: Sequence[TensorSpec]) -> dict[str, str]:
    """The tensors whose layout changes, with the new one.

    wanted: by name, "" for every image tensor. there: the layout of each image tensor as it is.
    Raises UsageError (DK691) for a name that is no image tensor, or when the layout of the tensors is not known.
    """
    by_name = {spec.name: spec for spec in specs}
    found: dict[str, str] = {}
    for name, layout in wanted.items():
        if not name and not there:
            raise UsageError(
                "--layout: no operator of the model tells which tensors are images",
                code="DK691",
                context=[f"{spec.name} {spec.describe()}" for spec in specs],
                hint=f"name them: --layout {specs[0].name}={layout}",
            )
        if name and (name not in by_name or len(by_name[name].shape or ()) != _RANK):
            images = [spec.name for spec in specs if len(spec.shape or ()) == _RANK]
            raise UsageError(
                f"--layout {name}={layout}: {name!r} is no input or output with four axes",
                code="DK691",
                hint=f"those with four axes: {', '.join(images) or 'none'}",
            )
        for tensor in [name] if name else there:
            # A tensor of unknown layout that the user names is in the other one.
            if there.get(tensor, _OTHER[layout]) != layout:
                found[tensor] = layout
            else:
                found.pop(tensor, None)
    return found


def apply(model: ir.Model, layouts: Mapping[str, str]) -> None:
    """Gives inputs and outputs their new layout; a Transpose that undoes one of the graph's own takes it away."""
    for value in list(model.graph.inputs):
        if str(value.name) in layouts:
            _change_input(model, value, layouts[str(value.name)])
    for at, value in enumerate(list(model.graph.outputs)):
        if str(value.name) in layouts:
            _change_output(model, at, value, layouts[str(value.name)])


def _change_input(model: ir.Model, value: ir.Value, layout: str) -> None:
    before, dims = _OTHER[layout], list(value.shape.dims) if value.shape is not None else None
    consumers = list(value.uses())
    outer = ir.Value(name=value.name, type=value.type)
    if dims is not None:
        outer.shape = ir.Shape([dims[axis] for axis in _ORDER[layout]])
    model.graph.inputs[list(model.graph.inputs).index(value)] = outer
    value.name = f"{outer.name}/{before}"
    node = ir.node("Transpose", [outer], attributes={"perm": list(_ORDER[before])}, name=f"{outer.name}/to_{before}")
    inner = node.outputs[0]
    inner.name, inner.type, inner.shape = value.name, value.type, value.shape
    model.graph.insert_before(model.graph[0], node) if len(model.graph) else model.graph.append(node)
    value.replace_all_uses_with(inner, replace_graph_outputs=True)
    for use in consumers:
        if _is_transpose(use.node, _ORDER[layout]) and not use.node.outputs[0].is_graph_output():
            use.node.outputs[0].replace_all_uses_with(outer)
            model.graph.remove(use.node, safe=True)
    if not list(inner.uses()) and not inner.is_graph_output():
        model.graph.remove(node, safe=True)


def _change_output(model: ir.Model, at: int, value: ir.Value, layout: str) -> None:
    before, name, dims = _OTHER[layout], value.name, list(value.shape.dims) if value.shape is not None else None
    maker = value.producer()
    undone = maker if maker is not None and _is_transpose(maker, _ORDER[before]) else None
    shape = None if dims is None else ir.Shape([dims[axis] for axis in _ORDER[layout]])
    value.name = f"{name}/{before}"
    source = undone.inputs[0] if undone is not None else None
    if source is not None and not source.is_graph_input() and not source.is_graph_output():
        outer = source
    else:
        node = ir.node("Transpose", [value], attributes={"perm": list(_ORDER[layout])}, name=f"{name}/to_{layout}")
        model.graph.append(node)
        outer = node.outputs[0]
    outer.name, outer.type, outer.shape = name, value.type, shape
    model.graph.outputs[at] = outer
    if outer is source and undone is not None and not list(value.uses()) and not value.is_graph_output():
        model.graph.remove(undone, safe=True)


def _is_transpose(node: ir.Node, order: tuple[int, ...]) -> bool:
    perm = node.attributes.get("perm") if node.op_type == "Transpose" and node.domain in ("", "ai.onnx") else None
    return perm is not None and tuple(perm.as_ints()) == order


def layout_specs(specs: Sequence[TensorSpec], layouts: Mapping[str, str]) -> tuple[TensorSpec, ...]:
    """The specs with the axes of those that change in their new order."""
    return tuple(
        dataclasses.replace(spec, shape=tuple(spec.shape[axis] for axis in _ORDER[layouts[spec.name]]))
        if spec.name in layouts and spec.shape is not None
        else spec
        for spec in specs
    )


def to_new(arrays: Feeds, layouts: Mapping[str, str]) -> Outputs:
    """Arrays of the source as the exported file has them."""
    return {name: _turned(array, layouts.get(name)) for name, array in arrays.items()}


def to_old(arrays: Feeds, layouts: Mapping[str, str]) -> Outputs:
    """Arrays of the exported file as the source has them."""
    return {name: _turned(array, _OTHER.get(layouts.get(name, ""))) for name, array in arrays.items()}


def _turned(array: Any, layout: str | None) -> Any:
    return array if layout is None else np.ascontiguousarray(np.transpose(array, _ORDER[layout]))
