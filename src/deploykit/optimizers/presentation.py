"""What a model file says besides its graph: kept, whatever an engine writes there."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from deploykit import graph

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclasses.dataclass(frozen=True, slots=True)
class Presentation:
    """What a file says besides its graph, and the declared shapes of its inputs and outputs.

    Engines write their options and inferred shapes into the file, rename dimensions, and name nodes or not. A size that
    an engine made of a named dimension of an input stays visible: that is a changed interface, for the comparison to
    refuse. Outputs are declared as before: their sizes follow from the inputs, and the comparison computes them.
    """

    metadata: dict[str, str]
    producer: tuple[str | None, str | None]
    texts: tuple[str | None, str | None]
    keys: frozenset[str]
    origins: dict[str, dict[str, str]]
    shapes: dict[str, ir.Shape | None]
    shown: frozenset[str]
    names_nodes: bool

    @staticmethod
    def of(model: ir.Model) -> Presentation:
        """Of a model that may be changed afterwards."""
        nodes = list(graph.all_nodes(model))
        return Presentation(
            dict(model.metadata_props),
            (model.producer_name, model.producer_version),
            (model.graph.name, model.doc_string),
            frozenset(key for node in nodes for key in node.metadata_props),
            # Which module a value was computed in: engines keep names of values, and drop what is said of nodes.
            {
                value.name: dict(node.metadata_props)
                for node in nodes
                if node.metadata_props
                for value in node.outputs
                if value.name
            },
            {
                value.name or "": None if value.shape is None else value.shape.copy()
                for value in (*model.graph.inputs, *model.graph.outputs)
            },
            frozenset(value.name or "" for value in _inner_values(model) if value.shape is not None),
            any(node.name for node in nodes),
        )

    def give(self, model: ir.Model) -> None:
        """Gives it to what an engine made of the model."""
        model.metadata_props.clear()
        model.metadata_props.update(self.metadata)
        model.producer_name, model.producer_version = self.producer
        model.graph.name, model.doc_string = self.texts
        for node in graph.all_nodes(model):
            for key in [key for key in node.metadata_props if key not in self.keys]:
                del node.metadata_props[key]
            if not node.metadata_props:
                said = (self.origins.get(value.name or "") for value in node.outputs)
                node.metadata_props.update(next(filter(None, said), {}))
        for value in _inner_values(model):
            if value.name not in self.shown:
                value.shape = value.type = None
        for value in model.graph.inputs:
            before = self.shapes.get(value.name or "")
            if before is not None:
                _restore_shape(value, before)
        for value in model.graph.outputs:
            before = self.shapes.get(value.name or "")
            if before is not None and (value.shape is None or len(value.shape) == len(before)):
                value.shape = before.copy()
        # A file without names gets none: they would be most of what a small one has.
        if self.names_nodes:
            graph.name_nodes(model)


def keep_presentation(simplified: ir.Model, original: ir.Model) -> None:
    """Gives a rewritten model what the original's file says besides its graph."""
    Presentation.of(original).give(simplified)


def _inner_values(model: ir.Model) -> list[ir.Value]:
    return [value for node in graph.all_nodes(model) for value in node.outputs if not value.is_graph_output()]


def _restore_shape(value: ir.Value, before: ir.Shape) -> None:
    if value.shape is None or len(before) != len(value.shape):
        return
    dims = [
        old if not isinstance(new, int) or getattr(old, "value", old) is None else new
        for old, new in zip(before.dims, value.shape.dims, strict=True)
    ]
    value.shape = type(before)(dims)
