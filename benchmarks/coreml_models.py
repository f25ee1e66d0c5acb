"""Converts the published models beside the checkout to Core ML, in fp32, and compares them with onnxruntime.

python benchmarks/coreml_models.py   # writes benchmarks/coreml_models.json, which docs/generate.py makes a table of

The values are simulated: deploykit's interpreter of ML Programs, no Mac.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.modules.update(dict.fromkeys(("torch", "tensorflow", "sklearn", "xgboost")))  # coremltools' other front-ends

from deploykit import graph  # noqa: E402
from deploykit.converters.coreml.convert import convert_job  # noqa: E402
from deploykit.converters.coreml.runtime import SimulatedRuntime  # noqa: E402
from deploykit.data import open_request  # noqa: E402
from deploykit.reference import Reference  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
MODELS = ROOT.parent / "shared" / "models"


def known():
    """{file: dims} of the models, as the tests have them, those that are refused too."""
    file = ROOT / "tests" / "converters" / "coreml" / "test_models.py"
    spec = importlib.util.spec_from_file_location("test_models", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MODELS | {name: dims for name, (_, dims) in module.REFUSED.items()}


def row(path, dims, folder):
    """What the table says of one model."""
    package = Path(folder) / f"{path.stem}.mlpackage"
    result = convert_job(str(path), str(package), {}, dims, {}, "fp32")
    refused = [
        f["message"] for f in result["findings"] if f["severity"] == "error" and "depends on" not in f["message"]
    ]
    if refused:
        return {"refused": refused}
    runtime, reference = SimulatedRuntime(package), Reference(path)
    inputs, _ = graph.interface(graph.load(path))
    request = {"source": None, "samples": 2, "seed": 0, "label": None, "dims": dims, "contract": None}
    largest = difference = 0.0
    for sample in open_request(request | {"purpose": "parity"}, inputs, model=path):
        made = runtime.predict(sample.feeds)
        for name, expected in reference.predict(sample.feeds).items():
            largest = max(largest, float(np.abs(expected).max()))
            difference = max(difference, float(np.abs(made[name] - expected).max()))
    return {
        "operators": sum(result["metrics"]["operators"].values()),
        "max_reference": float(f"{largest:.3g}"),
        "max_difference": float(f"{difference:.1g}"),
    }


def main():
    """Writes and prints the rows."""
    with tempfile.TemporaryDirectory() as folder:
        rows = {name: row(MODELS / name, dims, folder) for name, dims in sorted(known().items())}
    text = json.dumps(rows, indent=1) + "\n"
    (ROOT / "benchmarks" / "coreml_models.json").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
