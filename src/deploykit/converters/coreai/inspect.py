"""A look into an `.aimodel`, as Apple's own summary tells it (runs in the worker)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit import io
from deploykit.artifact import TensorSpec
from deploykit.converters.coreai.asset import ENTRY, NARROWED, expect_whole, kept
from deploykit.errors import InvalidFileError, VendorError

if TYPE_CHECKING:
    from collections.abc import Sequence

# "NDArray (Float32, ? x 2048)", "NDArray (Int32)".
_TYPE = re.compile(r"^NDArray \((?P<kind>\w+)(?:, (?P<sizes>.*))?\)$")
_PRECISIONS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


def describe(path: str | Path) -> dict[str, Any]:
    """Inputs, outputs, functions, operators, and how the weights are stored.

    Raises InvalidFileError (DK528) for a folder that is no asset.
    """
    place = Path(path)
    metadata = expect_whole(place)
    summary = summary_of(place)
    known_inputs, known_outputs, bounds = kept(metadata)
    inputs, outputs = known_inputs or own_specs(summary, "inputs"), known_outputs or own_specs(summary, "outputs")
    counts = {_dtype(kind): int(count) for kind, count in summary.storage_types}
    return {
        "format": "coreai",
        "inputs": [spec.as_dict() for spec in inputs],
        "outputs": [spec.as_dict() for spec in outputs],
        "functions": list(summary.function_names),
        "operators": {name: int(count) for name, count in sorted(summary.operation_distribution)},
        "nodes": sum(int(count) for _, count in summary.operation_distribution),
        "parameters_by_dtype": counts,
        "parameters": sum(counts.values()),
        "computes_in": [_dtype(kind) for kind in summary.compute_types],
        "precision": _precision(counts),
        "producer": metadata.get("producer"),
        **({"takes": bounds} if bounds else {}),
        "size_bytes": io.size_of(place),
    }


def summary_of(place: Path) -> Any:
    """Apple's summary of the program. Raises InvalidFileError (DK528) for a program that it does not read."""
    from coreai.authoring import AIModelAsset

    try:
        found = AIModelAsset.load(place).summary()
    except (RuntimeError, ValueError, OSError) as problem:
        raise _unread(place, problem) from problem
    if found is None or ENTRY not in found.function_names:
        raise _unread(place, ValueError(f"it has no function {ENTRY!r}"))
    return found


def _unread(place: Path, problem: Exception) -> InvalidFileError:
    return InvalidFileError(
        f"{place.name} cannot be read as a Core AI asset: {' '.join(str(problem).split())[:300]}",
        code="DK528",
        file=place,
        target="coreai",
    )


def own_specs(summary: Any, kind: str) -> list[TensorSpec]:
    """Inputs or outputs as the asset itself has them; what varies is named by its place."""
    listed = summary.function_inputs(ENTRY) if kind == "inputs" else summary.function_outputs(ENTRY)
    specs = []
    for name, text in listed:
        found = _TYPE.match(text)
        sizes = [size.strip() for size in re.split("[x\u00d7]", found["sizes"])] if found and found["sizes"] else []
        shape = tuple(int(size) if size.isdecimal() else f"{name}_{axis}" for axis, size in enumerate(sizes))
        specs.append(TensorSpec(name, _dtype(found["kind"]) if found else text, shape))
    return specs


def expect_interface(place: Path, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
    """Raises VendorError where the written asset has other names, order or types than the model."""
    summary = summary_of(place)
    for kind, specs in (("inputs", inputs), ("outputs", outputs)):
        made = {spec.name: spec.dtype for spec in own_specs(summary, kind)}
        wanted = {spec.name: NARROWED.get(spec.dtype, spec.dtype) for spec in specs}
        if made != wanted:
            raise VendorError(f"coreai-onnx changed the {kind}: {wanted} became {made}", target="coreai")


def _dtype(kind: str) -> str:
    lowered = kind.lower()
    return {"uint1": "bool", "int1": "bool"}.get(lowered, lowered)


def _precision(counts: dict[str, int]) -> str:
    floats = {kind: count for kind, count in counts.items() if kind in _PRECISIONS}
    integers = counts.get("int8", 0) + counts.get("uint8", 0)
    if integers > sum(floats.values()):
        return "int8-weights"
    return _PRECISIONS[max(floats, key=lambda kind: floats[kind])] if floats else "fp32"
