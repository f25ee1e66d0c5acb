"""`quantize` leaves the libraries of graphs and arrays to its worker: twice imported they cost twice."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
from onnx import parser, save_model

SCRIPT = """
import json, sys
from deploykit.api.quantize import quantize
report = quantize(sys.argv[1], output=sys.argv[2], precision="int8", calib=sys.argv[3])
heavy = [name for name in ("numpy", "onnx", "onnx_ir", "onnxruntime") if name in sys.modules]
print(json.dumps([report.failed, heavy]))
"""


def test_the_calling_process_imports_no_graph_library(tmp_path):
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[N,2] x) => (float[N,2] y)'
        " <float[2,2] w = {1.0, 0.5, -0.5, 2.0}> { y = MatMul (x, w) }"
    )
    save_model(model, tmp_path / "m.onnx")
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", x=rng.normal(size=(64, 1, 2)).astype(np.float32))
    arguments = [str(tmp_path / name) for name in ("m.onnx", "out.onnx", "data.npz")]
    done = subprocess.run([sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [False, []]
    assert (tmp_path / "out.onnx").exists()
