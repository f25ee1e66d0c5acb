"""`deploykit inspect model.engine`: the static look, on any machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deploykit.artifact import read_manifest
from deploykit.converters.tensorrt_rtx.plan import read_plan


def describe(path: str) -> dict[str, Any]:
    """Version, GPUs, layers and size of a plan; its interface from the manifest beside it, when there is one.

    Raises InvalidFileError (DK528) for another file.
    """
    file = Path(path)
    plan = read_plan(file)
    made = read_manifest(file)
    return {
        "format": "tensorrt-rtx",
        "inputs": [spec.as_dict() for spec in made.inputs] if made else None,
        "outputs": [spec.as_dict() for spec in made.outputs] if made else None,
        "interface_source": "the manifest beside it" if made else "not readable without a GPU and a manifest",
        "precision": made.precision if made else None,
        "options": made.options if made else None,
        "built_for": made.built_for if made else None,
        "size_bytes": plan.size_bytes,
        "layers": list(plan.layers),
        "static_check": plan.as_metrics(),
    }
