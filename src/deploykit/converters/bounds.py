"""Bounds of dynamic dimensions that a converter was given, and those that fit nothing in the model."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from deploykit.report import Finding, warning

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.artifact import TensorSpec

Bounds = tuple[int, int | None]


def bounds_of_input(
    spec: TensorSpec, dims: Mapping[str, Sequence[int | None]], profile: Sequence[Sequence[int]] | None
) -> list[Bounds | None]:
    """(min, max or None) of each dimension of an input, None where nothing bounds it; a profile wins over `dims`."""
    if spec.shape is None:
        return []
    found: list[Bounds | None] = []
    for axis, size in enumerate(spec.shape):
        if not isinstance(size, str):
            found.append(None)
        elif profile is not None and axis < len(profile[0]):
            found.append((profile[0][axis], profile[-1][axis]))
        elif size in dims:
            low, high, *_ = dims[size]
            found.append((low or 0, high))
        else:
            found.append(None)
    return found


def fixed_by(spec: TensorSpec, bounds: Sequence[Bounds | None]) -> tuple[int | str, ...] | None:
    """The shape, with a number in place of every symbol that has only one size left."""
    if spec.shape is None:
        return None
    return tuple(
        bound[0] if bound is not None and bound[0] == bound[1] else size
        for size, bound in zip(spec.shape, bounds, strict=True)
    )


def unused_bounds(
    inputs: Sequence[TensorSpec], dims: Mapping[str, Any], profiles: Mapping[str, Any], *, target: str
) -> list[Finding]:
    """A warning (DK204) for every bound whose dimension or input the model does not have."""
    symbols = {size for spec in inputs for size in spec.shape or () if isinstance(size, str)}
    names = {spec.name for spec in inputs}
    return [
        *(_unused("dimension", name, symbols, target) for name in dims if name not in symbols),
        *(_unused("input", name, names, target) for name in profiles if name not in names),
    ]


def _unused(what: str, name: str, known: set[str], target: str) -> Finding:
    near = difflib.get_close_matches(name, known, n=1)
    there = ", ".join(sorted(known)) or "none that is dynamic"
    return warning(
        "DK204",
        f"no {what} of the model's inputs is called {name!r}, so its bounds do nothing; there is {there}",
        target=target,
        hint=f"did you mean {near[0]!r}?" if near else "deploykit inspect MODEL shows the inputs",
    )
