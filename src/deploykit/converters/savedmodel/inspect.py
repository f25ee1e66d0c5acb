"""What is in a SavedModel (runs in the worker)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from deploykit import io
from deploykit.converters.savedmodel.folder import meta_graph, signature_of, signatures_of


def describe(path: str | Path) -> dict[str, Any]:
    """Signatures, inputs, outputs, operators, tags, TensorFlow's version and size; nothing of the model is run.

    Raises InvalidFileError (DK528) for what is no whole SavedModel.
    """
    folder = Path(path)
    meta = meta_graph(folder)
    found = signature_of(folder, meta)
    nodes = [*meta.graph_def.node, *(node for part in meta.graph_def.library.function for node in part.node_def)]
    operators = Counter(node.op for node in nodes)
    return {
        "format": "savedmodel",
        "inputs": [port.spec.as_dict() for port in found.inputs],
        "outputs": [port.spec.as_dict() for port in found.outputs],
        "signature": found.name,
        "signatures": signatures_of(meta),
        "called": {
            port.spec.name: port.called for port in (*found.inputs, *found.outputs) if port.called != port.spec.name
        },
        "operators": dict(sorted(operators.items())),
        "nodes": sum(operators.values()),
        "tags": sorted(meta.meta_info_def.tags),
        "producer": f"tensorflow {meta.meta_info_def.tensorflow_version}",
        "precision": "fp32",
        "size_bytes": io.size_of(folder),
        "files": [folder.name],
    }
