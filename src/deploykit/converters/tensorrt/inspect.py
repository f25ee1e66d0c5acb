"""`deploykit inspect model.engine`, or a build bundle's folder: the static look, on any machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deploykit.artifact import read_manifest
from deploykit.converters.bundles import inspect as bundles
from deploykit.converters.tensorrt.header import read_header
from deploykit.errors import InvalidFileError


def describe(path: str) -> dict[str, Any]:
    """Version and size of an engine, its interface from the manifest beside it; what is in a build bundle.

    Raises InvalidFileError (DK528) for another file.
    """
    file = Path(path)
    if file.is_dir():
        return bundles.describe(path)
    header, made = read_header(file), read_manifest(file)
    if header is None or header.product != "tensorrt":
        raise InvalidFileError(
            f"{file} is not a TensorRT engine: it begins with other bytes",
            code="DK528",
            file=file,
            hint="an engine begins with ftrt; copy or build it again",
        )
    return {
        "format": "tensorrt",
        "inputs": [spec.as_dict() for spec in made.inputs] if made else None,
        "outputs": [spec.as_dict() for spec in made.outputs] if made else None,
        "interface_source": "the manifest beside it" if made else "not readable without a GPU and a manifest",
        "precision": made.precision if made else None,
        "options": made.options if made else None,
        "built_for": made.built_for if made else None,
        "tensorrt_version": header.dotted,
        "method": "heuristic reading of the file's first bytes, nothing was executed",
        "size_bytes": file.stat().st_size,
    }
