"""Symbolic dimensions that one name is given to and that are not one size: Paddle writes `?` for every open one."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from deploykit import graph, io
from deploykit.report import Finding, note

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from deploykit.artifact import TensorSpec
    from deploykit.converters.profiles import Profile


def contradicted(inputs: Sequence[TensorSpec], profiles: Sequence[Mapping[str, Profile]]) -> set[str]:
    """Symbols that stand for different sizes in one shape set of one profile."""
    found: set[str] = set()
    for shapes in profiles:
        for place in range(3):
            sizes: dict[str, int] = {}
            for spec in inputs:
                given = shapes[spec.name][place] if spec.name in shapes else ()
                for symbol, size in zip(spec.shape or (), given, strict=False):
                    if isinstance(symbol, str) and sizes.setdefault(symbol, size) != size:
                        found.add(symbol)
    return found


@contextlib.contextmanager
def without(model: str, names: set[str]) -> Iterator[str]:
    """The model, or where there are such names a copy whose inputs and outputs have unnamed dimensions for them.

    TensorRT takes dimensions of one name for one size, and refuses a profile in which they differ.
    """
    if not names:
        yield model
        return
    loaded = graph.load(Path(model))
    for value in (*loaded.graph.inputs, *loaded.graph.outputs):
        if value.shape is not None:
            sizes = [None if str(getattr(dim, "value", "")) in names else dim for dim in value.shape.dims]
            value.shape = type(value.shape)(sizes)
    with io.scratch_folder() as folder:
        copy = Path(folder) / "model.onnx"
        graph.save(loaded, copy)
        yield str(copy)


def told(names: set[str], target: str) -> list[Finding]:
    """A note for each of them."""
    return [
        note(
            "DK521", f"dimension {name!r} stands for different sizes in the profile, and is not one here", target=target
        )
        for name in sorted(names)
    ]
