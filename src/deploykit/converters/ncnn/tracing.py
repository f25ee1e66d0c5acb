"""The shapes that pnnx follows a graph with: two where sizes vary, so that it writes none of them down."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from deploykit.report import Finding, failure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.artifact import TensorSpec

NAME = "ncnn"
# Where nothing bounds a dimension: multiples of what strides usually divide by.
_USUAL = (64, 128)
# `prepare` makes half precision single.
_TYPES = {
    "float32": "f32", "float16": "f32", "float64": "f64",
    "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8",
}  # fmt: skip
_MOST = 4  # axes of a tensor besides the batch
_TOO_MANY = "has {} axes; ncnn has 4, and the batch where pnnx finds one"


@dataclasses.dataclass(frozen=True, slots=True)
class Traced:
    """shapes: one or two lists in pnnx's words. sizes: of each dimension that varies, by name."""

    shapes: tuple[str, ...]
    sizes: dict[str, tuple[int, int]]


def trace(inputs: Sequence[TensorSpec], dims: Mapping[str, Sequence[int | None]]) -> Traced:
    """Shapes for inputs that `findings_of` has passed. The first axis is the batch where it is open: one sample."""
    batch: set[int | str] = {spec.shape[0] for spec in inputs if spec.shape and isinstance(spec.shape[0], str)}
    sizes: dict[str, tuple[int, int]] = {}
    lists: list[list[str]] = [[], []]
    for spec in inputs:
        for which, rows in enumerate(lists):
            shape = [_size(spec, axis, size, batch, dims, sizes)[which] for axis, size in enumerate(spec.shape or ())]
            rows.append(f"[{','.join(map(str, shape))}]{_TYPES[spec.dtype]}")
    texts = [",".join(rows) for rows in lists]
    return Traced(tuple(texts) if texts[0] != texts[1] else (texts[0],), sizes)


def _size(
    spec: TensorSpec,
    axis: int,
    size: int | str,
    batch: set[int | str],
    dims: Mapping[str, Sequence[int | None]],
    sizes: dict[str, tuple[int, int]],
) -> tuple[int, int]:
    if isinstance(size, int):
        return size, size
    if size in batch and (axis == 0 or size != "?"):
        return 1, 1
    low, high, *_ = dims.get(size, (None, None))
    found = (low or _USUAL[0], high if high is not None else max(_USUAL[1], 2 * (low or 0)))
    found = found if found[0] <= found[1] else (found[1], found[1])
    sizes[size if size != "?" else f"{spec.name}_{axis}"] = found
    return found


def findings_of(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> list[Finding]:
    """Failures (DK529) for types and ranks that ncnn has no tensors for."""
    found = []
    for spec in inputs:
        if spec.dtype not in _TYPES:
            found.append(_refused(spec, f"is {spec.dtype}, of which ncnn has no tensors", "Cast it to float32"))
        elif spec.shape is None:
            found.append(_refused(spec, "has no known rank", "export it with a fixed rank"))
        elif not spec.shape:
            found.append(
                _refused(
                    spec, "is a scalar, which pnnx does not take", "make it a constant, or a vector of one element"
                )
            )
        elif len(spec.shape) > _MOST + 1:
            found.append(_refused(spec, _TOO_MANY.format(len(spec.shape)), "merge axes"))
    for spec in outputs:
        if spec.dtype not in ("float32", "float16"):
            text = f"output {spec.name!r} is {spec.dtype}, and ncnn gives float32"
            hint = "take what it is made of as the output: logits in place of their ArgMax"
            found.append(failure("DK529", text, target=NAME, tensor=spec.name, hint=hint))
    return found


def too_many_axes(inputs: Sequence[TensorSpec], batch: Mapping[int, int | None]) -> list[Finding]:
    """Failures (DK529) for inputs that pnnx has left without a batch. batch: its axis by the input's place."""
    return [
        _refused(spec, _TOO_MANY.format(len(spec.shape or ())), "merge axes")
        for place, spec in enumerate(inputs)
        if batch.get(place) is None and len(spec.shape or ()) > _MOST
    ]


def _refused(spec: TensorSpec, why: str, remedy: str) -> Finding:
    return failure("DK529", f"input {spec.name!r} {why}", target=NAME, tensor=spec.name, hint=f"{remedy} in the model")
