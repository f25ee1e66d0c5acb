"""Symbolic dimensions that have one size left, and that size wherever they stand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from deploykit import graph
from deploykit.converters.bounds import bounds_of_input, fixed_by

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.artifact import TensorSpec


def fixed_sizes(inputs: Sequence[TensorSpec], dims: Mapping[str, Any], profiles: Mapping[str, Any]) -> dict[str, int]:
    """The symbols that have only one size left."""
    fixed = {}
    for spec in inputs:
        shape = fixed_by(spec, bounds_of_input(spec, dims, profiles.get(spec.name)))
        pairs = zip(spec.shape or (), shape or (), strict=True)
        fixed.update({old: new for old, new in pairs if isinstance(old, str) and isinstance(new, int)})
    return fixed


def fix_sizes(model: ir.Model, sizes: Mapping[str, int]) -> None:
    """Gives a symbol its only size wherever it stands."""
    for value in _values(model):
        if value.shape is not None:
            value.shape = ir.Shape(
                [
                    sizes.get(str(dim.value or f"{value.name}_dim{at}"), dim)
                    if isinstance(dim, ir.SymbolicDim)
                    else dim
                    for at, dim in enumerate(value.shape)
                ]
            )


def _values(model: ir.Model) -> list[ir.Value]:
    found = list(model.graph.inputs)
    for node in graph.all_nodes(model):
        found += node.outputs
    return found
