"""What is in an MNN model (runs in the worker)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deploykit import io
from deploykit.converters.mnn.interface import interface, read_tag
from deploykit.converters.mnn.tool import look_into


def describe(path: str | Path) -> dict[str, Any]:
    """Inputs, outputs, operators, precision of the weights, dynamic dimensions and size.

    Raises InvalidFileError (DK528) for what is no whole model.

    precision: as it was converted here; "unknown" in models made elsewhere, of which MNN does not tell it.
    """
    file = Path(path)
    facts = look_into(file)
    inputs, outputs = interface(facts)
    kept = read_tag(facts["tag"])
    return {
        "format": "mnn",
        "inputs": [spec.as_dict() for spec in inputs],
        "outputs": [spec.as_dict() for spec in outputs],
        "operators": dict(sorted(facts["operators"].items())),
        "nodes": sum(facts["operators"].values()),
        "precision": kept[2] if kept else "unknown",
        "dynamic_dims": sorted({size for spec in inputs for size in spec.shape or () if isinstance(size, str)}),
        "layouts": {row["name"]: row["layout"] for row in facts["inputs"]},
        "files": {file.name: io.size_of(file)},
        "size_bytes": io.size_of(file),
        "producer": f"MNN {facts['version']}",
    }
