"""What is in a tract model (runs in the worker)."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

from deploykit_tract.archive import graph_text, specs_of

_CALL = re.compile(r"=\s*(\w+)\s*\(")


def describe(path: str) -> dict[str, Any]:
    """Interface and operators of an artifact, from its text; nothing is run. Raises ModelError (DK202)."""
    file = Path(path)
    inputs, outputs = specs_of(file)
    operators = Counter(_CALL.findall(graph_text(file)))
    return {
        "format": "tract",
        "inputs": [spec.as_dict() for spec in inputs],
        "outputs": [spec.as_dict() for spec in outputs],
        "precision": "fp32",
        "operators": dict(sorted(operators.items())),
        "size_bytes": file.stat().st_size,
    }
