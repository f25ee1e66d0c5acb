"""What is in a folder for ONNX Runtime Web (runs in the worker)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deploykit import graph, io
from deploykit.converters.onnxruntime_web.folder import ASSETS, PAGE, read_facts
from deploykit.io import file_sha256


def describe(path: str | Path) -> dict[str, Any]:
    """The model's summary, the page's backend and ONNX Runtime Web's version, and files.

    Raises ModelError (DK528) for a folder that is no whole page, and what `graph.load` does for its model.
    """
    folder = Path(path)
    facts = read_facts(folder)
    file = folder / facts["model"]
    model = graph.load(file)
    artifact = graph.describe(file, model)
    files = sorted(entry for entry in folder.rglob("*") if entry.is_file())
    changed = [
        name
        for name in PAGE
        if not (folder / name).is_file() or file_sha256(folder / name) != file_sha256(ASSETS / name)
    ]
    return {
        "format": "onnxruntime-web",
        **graph.summary(model),
        "inputs": [spec.as_dict() for spec in artifact.inputs],
        "outputs": [spec.as_dict() for spec in artifact.outputs],
        "precision": artifact.precision,
        "backend": facts["backend"],
        "onnxruntime-web": facts["version"],
        "runtime": facts["runtime"],
        "runtime_here": (folder / str(facts["runtime"]) / str(facts["script"])).is_file(),
        "changed_scripts": changed,
        "files": {entry.relative_to(folder).as_posix(): io.size_of(entry) for entry in files},
        "size_bytes": sum(map(io.size_of, files)),
    }
