"""`deploykit inspect FOLDER`: what a build bundle holds (in the worker)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deploykit import io
from deploykit.converters.bundles.folder import read_facts


def describe(path: str) -> dict[str, Any]:
    """Interface, options, commands and files of a bundle. Raises InvalidFileError (DK528)."""
    home = Path(path)
    facts = read_facts(home)
    kept = ("title", "tool", "opset", "options", "makes", "commands", "calibration", "check", "sources", "version")
    return {
        "format": f"{facts['target']}-bundle",
        "inputs": facts["inputs"],
        "outputs": facts["outputs"],
        "precision": facts["precision"],
        "size_bytes": io.size_of(home),
        "bundle_files": {name: io.size_of(home / name) for name in facts["files"]},
        "samples": len(facts["samples"]),
        **{key: facts[key] for key in kept if key in facts},
    }
