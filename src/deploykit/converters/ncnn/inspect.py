"""What is in an ncnn network (runs in the worker)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from deploykit import io
from deploykit.converters.ncnn.interface import doors
from deploykit.converters.ncnn.tool import look_into


def describe(path: str | Path) -> dict[str, Any]:
    """Inputs, outputs, layers, precision of the weights, dynamic dimensions, files and sizes.

    Names, types and the batch come from the manifest beside it where there is one of these files; without it they are
    the network's own. Raises InvalidFileError (DK528), ModelError (DK203) when its .bin is missing.
    """
    file = Path(path)
    layers, found = look_into(file)
    inputs, outputs, precision = doors(file, layers, found)
    files = [file, file.with_suffix(".bin")]
    specs = [door.spec for door in inputs]
    return {
        "format": "ncnn",
        "inputs": [spec.as_dict() for spec in specs],
        "outputs": [door.spec.as_dict() for door in outputs],
        "operators": dict(sorted(Counter(layer.type for layer in layers).items())),
        "nodes": len(layers),
        "precision": precision,
        "dynamic_dims": sorted({size for spec in specs for size in spec.shape or () if isinstance(size, str)}),
        "batch_axis": {door.spec.name: door.batch for door in (*inputs, *outputs)},
        "files": {member.name: io.size_of(member) for member in files},
        "size_bytes": sum(io.size_of(member) for member in files),
    }
