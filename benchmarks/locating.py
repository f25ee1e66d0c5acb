"""`validate --locate` against plain `validate`: processor time and peak memory, on a fault planted in the middle.

`python benchmarks/locating.py [--write]`: a made model of 1,000 nodes, with small tensors and with large ones (1.6 GB
of activations in all), and PP-OCRv4's recognition net where it lies beside the checkout; candidates in ONNX, as
OpenVINO IR and as Core ML package. --write keeps the rows in benchmarks/locating.json, for docs/locating.md.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("DEPLOYKIT_SHARED", ROOT.parent / "shared"))
RESULT = Path(__file__).with_suffix(".json")
REC = SHARED / "models" / "ppocr_v4" / "rec.onnx"
_MEASURED = """
import json, resource, subprocess, sys
done = subprocess.run(sys.argv[1:], capture_output=True, text=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, json.loads(done.stdout)["metrics"]]))
"""


def made_models(folder: Path) -> None:
    """The models of the tests: 1,000 nodes on 12 x 12, and on 224 x 224."""
    spec = importlib.util.spec_from_file_location("deep", ROOT / "tests" / "locating" / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, size in (("small", 12), ("large", 224)):
        module.SIZE = size
        model = module.deep()
        onnx.save(model, folder / f"{name}.onnx")
        onnx.save(module.other_weight(model, 480, 1.2), folder / f"{name}_fault.onnx")


def faulty_rec(folder: Path) -> None:
    """PP-OCR's recognition net with the twentieth convolution's weight times 1.05, and two inputs for it."""
    model = onnx.load(REC)
    weights = [node for node in model.graph.node if node.op_type == "Constant" and len(node.attribute[0].t.dims) == 4]
    tensor = weights[20].attribute[0].t
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(1.05), tensor.name))
    onnx.save(model, folder / "rec_fault.onnx")
    lines = np.random.default_rng(0).standard_normal((2, 3, 48, 160)).astype(np.float32) * 0.5
    np.savez(folder / "rec.npz", x=lines)


def converted(folder: Path, model: str, suffix: str) -> Path:
    """The candidate in the format of a suffix."""
    source, target = folder / f"{model}.onnx", folder / f"{model}{suffix}"
    if suffix == ".xml":
        save = "ov.save_model(ov.convert_model(sys.argv[1]), sys.argv[2], compress_to_fp16=False)"
        code = f"import openvino as ov, sys; {save}"
        subprocess.run([sys.executable, "-c", code, str(source), str(target)], check=True)
    elif suffix == ".mlpackage":
        command = [sys.executable, "-m", "deploykit", "convert", str(source), "--to", "coreml", "-o", str(target)]
        subprocess.run(command, check=True, capture_output=True)
    return target


def measured(reference: Path, candidate: Path, *options: str) -> tuple[float, float, dict[str, Any]]:
    """Processor seconds and the largest process's peak in MB of one `validate`, and its metrics."""
    command = [sys.executable, "-m", "deploykit", "validate", str(reference), str(candidate), "--json", *options]
    done = subprocess.run([sys.executable, "-c", _MEASURED, *command], check=True, capture_output=True, text=True)
    seconds, megabytes, metrics = json.loads(done.stdout)
    return seconds, megabytes, metrics


def row(name: str, reference: Path, candidate: Path, *options: str) -> dict[str, Any]:
    """Both commands in turn, three times; medians."""
    plain, located = [], []
    for _ in range(3):
        plain.append(measured(reference, candidate, *options))
        located.append(measured(reference, candidate, *options, "--locate"))
    found = located[0][2]["located"]
    middle = {
        "plain": [float(np.median([run[i] for run in plain])) for i in (0, 1)],
        "locate": [float(np.median([run[i] for run in located])) for i in (0, 1)],
    }
    return {
        "model": name,
        "candidate": candidate.suffix[1:],
        "tensors": found["tensors"],
        "matched": found["matched"],
        "looks": found["looks"],
        "found": found["first"]["source_node"],
        "steps": len(found["first"]["steps"]),
        "cpu_seconds": [round(middle["plain"][0], 1), round(middle["locate"][0], 1)],
        "peak_mb": [round(middle["plain"][1]), round(middle["locate"][1])],
    }


def main() -> None:
    """Prints a row for each candidate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made_models(folder)
        jobs = [("small", ".onnx"), ("small", ".xml"), ("small", ".mlpackage"), ("large", ".onnx"), ("large", ".xml")]
        if REC.exists():
            faulty_rec(folder)
            jobs += [("rec", ".onnx"), ("rec", ".xml")]
        for model, suffix in jobs:
            reference = REC if model == "rec" else folder / f"{model}.onnx"
            options = ["--data", str(folder / "rec.npz")] if model == "rec" else ["--samples", "1"]
            rows.append(row(model, reference, converted(folder, f"{model}_fault", suffix), *options))
            print(rows[-1], flush=True)
    if arguments.write:
        RESULT.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
