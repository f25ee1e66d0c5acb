"""Symbolic dimensions as the user calls them: described, renamed, given a name, or fixed, everywhere in a graph."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from deploykit.artifact import TensorSpec
from deploykit.data import DimRange
from deploykit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path


def ranges_of(specs: Iterable[TensorSpec], given: Mapping[str, DimRange]) -> dict[str, DimRange]:
    """Every symbol of the inputs with its range; from 1 up where none was given."""
    names = [dim for spec in specs for dim in spec.shape or () if isinstance(dim, str)]
    return {name: given.get(name, DimRange(name, 1, None)) for name in dict.fromkeys(names)}


def described(
    found: Sequence[TensorSpec], inputs: list[dict[str, Any]], dims: dict[str, list[int | None]], path: Path
) -> list[TensorSpec]:
    """Those of the inputs that change: described by the user, or with a number for a symbol whose range is one number.

    found: the source's own inputs. inputs: TensorSpec dicts by the user. dims: [minimum, maximum or None] by symbol.
    Raises UsageError (DK627, DK620) when they contradict the model, or a range names no dimension.
    """
    given = {spec.name: spec for spec in (TensorSpec.from_dict(facts) for facts in inputs)}
    _check_inputs(found, given.values(), path)
    specs = [given.get(spec.name, spec) for spec in found]
    symbols = dict.fromkeys(dim for spec in specs for dim in spec.shape or () if isinstance(dim, str))
    for name in dims:
        if name not in symbols:
            raise UsageError(
                f"--dim {name} names no dimension of {path.name}",
                code="DK620",
                file=path,
                context=[f"symbols: {', '.join(symbols) or 'none'}"],
                hint="deploykit inspect shows the inputs; name their dimensions with --input",
            )
    fixed = {name: low for name, (low, high, *_) in dims.items() if low == high and low is not None}
    if not given and not fixed:
        return []
    return [
        dataclasses.replace(
            spec, shape=tuple(fixed.get(dim, dim) if isinstance(dim, str) else dim for dim in spec.shape)
        )
        for spec in specs
        if spec.shape is not None and (spec.name in given or set(spec.shape) & set(fixed))
    ]


def _check_inputs(found: Iterable[TensorSpec], given: Iterable[TensorSpec], path: Path) -> None:
    """Refuses descriptions that contradict the model; a size that the model leaves open may be given."""
    by_name = {spec.name: spec for spec in found}
    for spec in given:
        actual = by_name.get(spec.name)
        if actual is not None and actual.dtype == spec.dtype and _compatible(actual, spec):
            continue
        was = actual.describe() if actual else "not an input of it"
        raise UsageError(
            f"input {spec.name!r} is described as {spec.describe()}, and in {path.name} it is {was}",
            code="DK627",
            file=path,
            tensor=spec.name,
            context=[f"inputs: {', '.join(by_name)}"],
            hint=f"deploykit inspect {path}",
        )


def _compatible(actual: TensorSpec, given: TensorSpec) -> bool:
    if actual.shape is None or given.shape is None:
        return True
    return len(actual.shape) == len(given.shape) and all(
        isinstance(a, str) or a == b for a, b in zip(actual.shape, given.shape, strict=True)
    )


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
