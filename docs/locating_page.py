"""docs/locating.md: what `validate --locate` does, and what it takes, from the run kept in benchmarks/."""

from __future__ import annotations

import json
from pathlib import Path

BENCHMARK = Path(__file__).resolve().parents[1] / "benchmarks" / "locating.json"
_MODELS = {
    "small": "made, 1,000 nodes on 12 x 12",
    "large": "made, 1,000 nodes on 224 x 224: 1.6 GB of activations",
    "rec": "PP-OCRv4, recognition",
}
_FORMATS = {"onnx": "ONNX", "xml": "OpenVINO IR", "mlpackage": "Core ML, simulated"}
TEXT = Path(__file__).parent / "parts" / "locating.md"


def page() -> str:
    """The page."""
    lines = []
    for row in json.loads(BENCHMARK.read_text(encoding="utf-8")):
        found = f"`{row['found']}`" + (f", one of {row['steps']} fused nodes" if row["steps"] > 1 else "")
        seconds, megabytes = (f"{row[key][0]} -> {row[key][1]}" for key in ("cpu_seconds", "peak_mb"))
        matched = f"{row['matched']} of {row['tensors']}"
        cells = (_MODELS[row["model"]], _FORMATS[row["candidate"]], matched, row["looks"], found, seconds, megabytes)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return TEXT.read_text(encoding="utf-8") + "\n".join(lines) + "\n"
