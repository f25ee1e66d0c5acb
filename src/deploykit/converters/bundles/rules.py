"""The documented limits of a toolchain: each one that a model breaks is an error before anything is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deploykit import graph
from deploykit.report import Finding, failure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx_ir as ir

    from deploykit.artifact import TensorSpec
    from deploykit.toolchain import Description


def broken(found: Description, model: ir.Model, dims: Mapping[str, Sequence[int | None]]) -> list[Finding]:
    """An error (DK595) for each limit that the model breaks. dims: bounds by symbol, which may leave one size.

    A model of another opset is not refused: `convert` brings it to one that the toolchain takes.
    """
    inputs = [_sized(spec, dims) for spec in graph.interface(model)[0]]
    needs, findings = found.needs, []
    if needs.static:
        findings += [finding for spec in inputs if (finding := _not_static(found, spec)) is not None]
    if needs.inputs is not None and len(inputs) > needs.inputs:
        names = ", ".join(repr(spec.name) for spec in inputs)
        text = f"{found.title} takes {needs.inputs} input(s), and the model has {len(inputs)}: {names}"
        findings.append(_wrong(found, text, "join them before the model, or cut it at another place"))
    for spec in inputs:
        if needs.dtypes and spec.dtype not in needs.dtypes:
            text = f"input {spec.name!r} is {spec.dtype}, and {found.title} takes {', '.join(needs.dtypes)}"
            findings.append(_wrong(found, text, "convert the type before the model", tensor=spec.name))
        if needs.rank is not None and spec.shape is not None and len(spec.shape) > needs.rank:
            text = f"input {spec.name!r} has {len(spec.shape)} dimensions, and {found.title} takes {needs.rank} at most"
            findings.append(_wrong(found, text, "reshape it before the model", tensor=spec.name))
        if needs.batch is not None and spec.shape and isinstance(spec.shape[0], int) and spec.shape[0] != needs.batch:
            text = f"input {spec.name!r} starts with {spec.shape[0]}, and {found.title} takes a batch of {needs.batch}"
            findings.append(_wrong(found, text, f"export the model with a batch of {needs.batch}", tensor=spec.name))
    return findings


def _sized(spec: TensorSpec, dims: Mapping[str, Sequence[int | None]]) -> TensorSpec:
    import dataclasses

    if spec.shape is None:
        return spec
    fixed = {name: low for name, (low, high, *_) in dims.items() if low is not None and low == high}
    shape = tuple(fixed.get(size, size) if isinstance(size, str) else size for size in spec.shape)
    return dataclasses.replace(spec, shape=shape)


def _not_static(found: Description, spec: TensorSpec) -> Finding | None:
    if spec.shape is None:
        return _wrong(found, f"the rank of input {spec.name!r} is unknown", "export it with a fixed rank", spec.name)
    symbols = list(dict.fromkeys(size for size in spec.shape if isinstance(size, str)))
    if not symbols:
        return None
    text = f"input {spec.name!r} ({spec.describe()}) has no fixed size, and {found.title} compiles for one"
    return _wrong(
        found, text, " ".join(f"--dim {name}=1..1" for name in symbols) + " (the size that you need)", spec.name
    )


def _wrong(found: Description, text: str, hint: str, tensor: str | None = None) -> Finding:
    return failure("DK595", text, target=found.name, tensor=tensor, hint=hint)
