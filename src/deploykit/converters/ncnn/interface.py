"""Which blob is which input or output of the model, and which of its axes is the batch."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from deploykit import io
from deploykit.artifact import Artifact, TensorSpec, read_manifest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from deploykit.converters.ncnn.param import Layer

_SIZES = {"2": 0, "1": 1, "11": 2, "0": 3}  # c, h, d, w of an Input layer, outermost first


@dataclasses.dataclass(frozen=True, slots=True)
class Door:
    """One input or output. batch: its axis that is the batch; None where it has none."""

    spec: TensorSpec
    blob: str
    batch: int | None


def doors(
    path: Path, layers: Sequence[Layer], found: Mapping[str, Any]
) -> tuple[tuple[Door, ...], tuple[Door, ...], str]:
    """Inputs, outputs and precision, by the manifest where it is of these files; else what the network itself says.

    found: names of its inputs and outputs, of `tool.look_into`. A network made elsewhere takes single samples.
    """
    claim = claimed(path)
    if claim is not None:
        try:
            inputs = _known(claim.inputs, claim.interface["inputs"], found["inputs"])
            outputs = _known(claim.outputs, claim.interface["outputs"], found["outputs"])
        except (KeyError, TypeError, ValueError):
            pass
        else:
            return inputs, outputs, claim.precision
    given = {layer.outputs[0]: layer for layer in layers if layer.type == "Input" and layer.outputs}
    own = tuple(Door(TensorSpec(name, "float32", _shape(given.get(name))), name, None) for name in found["inputs"])
    return own, tuple(Door(TensorSpec(name, "float32", None), name, None) for name in found["outputs"]), "unknown"


def claimed(path: Path) -> Artifact | None:
    """The manifest beside a network, where it is of these very files: their names may have changed since."""
    claim = read_manifest(path)
    if claim is None or not path.with_suffix(".bin").is_file():
        return None
    return claim if claim.interface.get("sha256") == digests(path) else None


def digests(path: Path) -> list[str]:
    """Of both files."""
    return [io.file_sha256(path), io.file_sha256(path.with_suffix(".bin"))]


def _known(
    specs: Sequence[TensorSpec], rows: Mapping[str, Mapping[str, Any]], blobs: Sequence[str]
) -> tuple[Door, ...]:
    made = tuple(Door(spec, str(rows[spec.name]["blob"]), rows[spec.name]["batch"]) for spec in specs)
    missing = {door.blob for door in made} - set(blobs)
    if missing:
        raise ValueError(f"no blob {missing}")
    return made


def _shape(layer: Layer | None) -> tuple[int | str, ...] | None:
    """The sizes of an Input layer, where it has them."""
    sizes = dict(setting.split("=", 1) for setting in layer.settings if "=" in setting) if layer is not None else {}
    found = sorted((place, sizes[key]) for key, place in _SIZES.items() if key in sizes)
    if not found or not all(size.isdecimal() and int(size) > 0 for _, size in found):
        return None
    return tuple(int(size) for _, size in found)
