"""The ONNX interface of an MNN model, kept in the file's own tag; what MNN holds otherwise is cast at the door."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.artifact import TensorSpec
from deploykit.errors import DataError
from deploykit.report import Finding, failure, note

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Array = np.ndarray[Any, np.dtype[Any]]

NAME = "mnn"
# What MNN's arrays are for each type of the interface, where it has one that loses nothing within the range.
_HELD = {
    "float32": "float32",
    "float16": "float32",
    "int32": "int32",
    "int64": "int32",
    "bool": "int32",
    "int8": "int32",
    "int16": "int32",
    "uint8": "int32",
    "uint16": "int32",
}
_OWN = {"float": "float32", "int": "int32", "uint8": "uint8", "int8": "int8", "int64": "int64", "double": "float64"}


def tag(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], precision: str) -> str:
    """What is written as the model's bizCode, which MNN keeps for its users and gives back."""
    facts = {
        "deploykit": 1,
        "inputs": [spec.as_dict() for spec in inputs],
        "outputs": [spec.as_dict() for spec in outputs],
        "precision": precision,
    }
    return json.dumps(facts, separators=(",", ":"))


def read_tag(text: str) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...], str] | None:
    """Inputs, outputs and precision of a tag of ours; None for another one."""
    try:
        facts = json.loads(text)
        found = [tuple(TensorSpec.from_dict(spec) for spec in facts[kind]) for kind in ("inputs", "outputs")]
        return found[0], found[1], str(facts["precision"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def interface(facts: Mapping[str, Any]) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Inputs and outputs of what `tool.look_into` found: the model's, where it was converted here, else MNN's own."""
    kept = read_tag(facts["tag"])
    if kept is not None:
        return kept[0], kept[1]
    inputs = tuple(
        TensorSpec(row["name"], _OWN.get(row["dtype"], row["dtype"]), _sizes(row)) for row in facts["inputs"]
    )
    return inputs, tuple(TensorSpec(name, "float32", None) for name in facts["outputs"])


def _sizes(row: Mapping[str, Any]) -> tuple[int | str, ...]:
    return tuple(size if size >= 0 else f"{row['name']}_{axis}" for axis, size in enumerate(row["shape"]))


def findings_of(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> list[Finding]:
    """A failure (DK529) for each type that MNN cannot hold, a note for each that it holds otherwise."""
    found = []
    for kind, specs in (("input", inputs), ("output", outputs)):
        for spec in specs:
            held = _HELD.get(spec.dtype)
            if held is None:
                text = f"{kind} {spec.name!r} is {spec.dtype}, of which MNN has no tensors"
                hint = "Cast it to float32 or int32 in the model"
                found.append(failure("DK529", text, target=NAME, tensor=spec.name, hint=hint))
            elif held != spec.dtype:
                text = f"{kind} {spec.name!r} is {spec.dtype} in the model and {held} in MNN, which its callers give"
                hint = "deploykit's own runtime casts, and refuses integers beyond 32 bits"
                found.append(note("DK529", text, target=NAME, tensor=spec.name, hint=hint))
    return found


def as_held(array: Array, spec: TensorSpec) -> Array:
    """A feed in MNN's type. DataError (DK548) for an integer beyond 32 bits."""
    held = np.dtype(_HELD.get(spec.dtype, spec.dtype))
    if array.dtype.kind in "iu" and array.size and held.kind == "i":
        limits, low, high = np.iinfo(held), int(array.min()), int(array.max())
        if low < limits.min or high > limits.max:
            raise DataError(
                f"input {spec.name!r} is {held} in MNN, and the values are {low}..{high}",
                code="DK548",
                tensor=spec.name,
                hint=f"give values of {limits.min}..{limits.max}",
            )
    return np.ascontiguousarray(array.astype(held))


def as_declared(array: Array, spec: TensorSpec) -> Array:
    """An output in the model's type."""
    return array.astype(spec.dtype)
