"""What is in a library of TVM, read from the file: nothing of it is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deploykit import io
from deploykit.converters.tvm.trailer import kind_of, read


def describe(path: str | Path) -> dict[str, Any]:
    """Inputs, outputs, functions, precision, dynamic dimensions, and what it was built for.

    Of a library that was made elsewhere only its size and format. Raises InvalidFileError (DK528) for anything else.
    """
    file = Path(path)
    facts = read(file) or {}
    inputs = facts.get("inputs", [])
    return {
        "format": "tvm",
        "inputs": inputs,
        "outputs": facts.get("outputs", []),
        "operators": facts.get("functions", {}),
        "nodes": sum(facts.get("functions", {}).values()),
        "precision": facts.get("precision", "unknown"),
        "dynamic_dims": sorted({size for spec in inputs for size in spec["shape"] or () if isinstance(size, str)}),
        "built_for": facts.get("built_for", {}),
        "library": kind_of(file),
        "files": {file.name: io.size_of(file)},
        "size_bytes": io.size_of(file),
        "producer": f"Apache TVM {facts['version']}" if facts else "unknown",
    }
