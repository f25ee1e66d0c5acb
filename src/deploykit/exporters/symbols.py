"""Symbolic dimensions as the user calls them: renamed, given a name, or fixed, everywhere in a graph."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from deploykit.artifact import TensorSpec


def rename_symbols(model: ir.Model, names: Mapping[str, str]) -> None:
    """Renames symbolic dimensions everywhere in the graph, inside expressions (`2*s77`) too."""
    pattern = re.compile(r"\b(" + "|".join(map(re.escape, names)) + r")\b")

    def renamed(dim: Any) -> Any:
        text = getattr(dim, "value", None)
        return pattern.sub(lambda match: names[match[0]], text) if isinstance(text, str) else dim

    _each_dim(model, renamed)


def describe_inputs(model: ir.Model, specs: Sequence[TensorSpec]) -> None:
    """Gives the inputs' open dimensions the names or numbers of the specs; a symbol is changed wherever it is used.

    Outputs and inner values whose sizes follow from a dimension without a name, once it is a number, are left open.
    """
    by_name = {value.name: value for value in model.graph.inputs}
    names: dict[str, str] = {}
    numbers: dict[str, int] = {}
    for spec in specs:
        value = by_name[spec.name]
        if value.shape is None or spec.shape is None:
            continue
        dims: list[Any] = list(value.shape.dims)
        for axis, (old, new) in enumerate(zip(dims, spec.shape, strict=True)):
            text = getattr(old, "value", None)
            if isinstance(old, int) or text == new:
                continue
            if text is None:
                dims[axis] = new
            elif isinstance(new, int):
                numbers[text] = new
            else:
                names[text] = new
        value.shape = ir.Shape(dims)
    if names:
        rename_symbols(model, names)
    if numbers:
        _each_dim(model, lambda dim: numbers.get(str(getattr(dim, "value", "")), dim))


def _each_dim(model: ir.Model, change: Callable[[Any], Any]) -> None:
    for value in _values(model):
        if value.shape is not None:
            value.shape = ir.Shape([change(dim) for dim in value.shape.dims])


def _values(model: ir.Model) -> Iterator[ir.Value]:
    for scope in model.graphs():
        yield from scope.inputs
        for node in scope:
            yield from node.outputs
