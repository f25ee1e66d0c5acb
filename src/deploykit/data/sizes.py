"""The sizes that two artifacts have in common: fixed ones, bounds, or sets of sizes."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from deploykit.data.fitting import is_symbol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.artifact import TensorSpec

    Bounds = Mapping[str, Sequence[Sequence[int | None]]]


def with_bounds(request: Mapping[str, Any], inputs: Sequence[TensorSpec], *artifacts: Bounds) -> dict[str, Any]:
    """The request, with the sizes that the artifacts allow where it leaves a dimension or its sizes open.

    artifacts: [min, max or None, *sizes] of each axis by input, as `Runtime.bounds`.
    """
    found: dict[str, list[int | None]] = dict(request.get("dims") or {})
    for bounds in artifacts:
        for spec in inputs:
            for name, own in zip(spec.shape or (), bounds.get(spec.name, ()), strict=False):
                if isinstance(name, str):
                    found[name] = _within(found.get(name), own)
    return {**request, "dims": found}


def _within(given: Sequence[int | None] | None, own: Sequence[int | None]) -> list[int | None]:
    """The artifact's own bounds where none are given; of its set of sizes those that lie in a range that is given."""
    if given is None:
        return list(own)
    low, high = given[:2]
    sizes = [size for size in own[2:] if size is not None and (low or 0) <= size and (high is None or size <= high)]
    return list(given) if given[2:] or not sizes else [min(sizes), max(sizes), *sizes]


def covering(request: Mapping[str, Any], inputs: Sequence[TensorSpec]) -> dict[str, Any]:
    """The request with as many random samples as there are combinations of the sizes of sets, at least."""
    dims = request["dims"]
    names = {name for spec in inputs for name in spec.shape or () if isinstance(name, str)}
    count = math.prod(len(dims[name][2:]) or 1 for name in names if name in dims)
    if request["samples"] is None or not (request["source"] or "random").startswith("random"):
        return dict(request)
    return {**request, "samples": max(request["samples"], count)}


def common_inputs(first: Sequence[TensorSpec], second: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """The reference's inputs, with the dimensions that the candidate has fixed.

    A dimension that is called `?` gets a name of its own, under which it can have bounds of its own.
    """
    fixed = {spec.name: spec.shape for spec in second}
    return tuple(
        dataclasses.replace(spec, shape=_named(spec.name, _narrow(spec.shape, fixed.get(spec.name)))) for spec in first
    )


def _named(name: str, shape: tuple[int | str, ...] | None) -> tuple[int | str, ...] | None:
    if shape is None:
        return None
    return tuple(
        size if isinstance(size, int) or is_symbol(size) else f"{name}_dim{axis}" for axis, size in enumerate(shape)
    )


def _narrow(shape: tuple[int | str, ...] | None, other: tuple[int | str, ...] | None) -> tuple[int | str, ...] | None:
    if shape is None or other is None or len(shape) != len(other):
        return shape
    return tuple(b if isinstance(a, str) and isinstance(b, int) else a for a, b in zip(shape, other, strict=True))
