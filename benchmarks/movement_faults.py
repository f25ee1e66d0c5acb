"""Faults put into fp32 models: which the fp32 row finds, and which it still finds beside the model's own movement.

python benchmarks/movement_faults.py   # writes movement_faults.json, of which docs/generate.py makes a table

One layer of a published model is changed, for layers evenly spaced; the changed model is compared with the right one
on real inputs, as a converted artifact is. Models lie beside the checkout.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import onnx_ir as ir
import targets_models
from quantization_data import ROOT

from deploykit import graph
from deploykit.api.rounding import settle
from deploykit.artifact import Artifact
from deploykit.comparison import compare_job
from deploykit.data.request import data_request
from deploykit.spread import movement_job

OUT = ROOT / "benchmarks" / "movement_faults.json"
MODELS = {
    "PP-OCR v4 det": "ppocr_v4/det.onnx",
    "PP-OCR v4 rec": "ppocr_v4/rec.onnx",
    "dnsmos": "dnsmos/sig_bak_ovr.onnx",
}
_LAYERS = 5


def tf32(values):
    """Rounded to 10 bits of mantissa, as tensor cores take them."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def swapped(values):
    """The first two output channels exchanged."""
    changed = values.copy()
    changed[[0, 1]] = changed[[1, 0]]
    return changed


def channel(values):
    """One output channel off by 0.1 %."""
    changed = values.copy()
    changed[0] *= np.float32(1.001)
    return changed


FAULTS = {
    "weights off by 0.01 %": lambda values: values * np.float32(1.0001),
    "weights off by 0.1 %": lambda values: values * np.float32(1.001),
    "weights off by 1 %": lambda values: values * np.float32(1.01),
    "one output channel off by 0.1 %": channel,
    "weights rounded as TF32": tf32,
    "weights rounded as fp16": lambda values: values.astype(np.float16).astype(np.float32),
    "weights rounded as bf16": lambda values: (
        (values.view(np.uint32) + np.uint32(0x8000)) & np.uint32(0xFFFF0000)
    ).view(np.float32),
    "two output channels swapped": swapped,
}


def weights(model):
    """Setters of the weights of convolutions and matrix products: (value of the constant, function that replaces)."""
    found = []
    for node in model.graph:
        if node.op_type not in ("Conv", "MatMul", "Gemm") or len(node.inputs) < 2:
            continue
        value = node.inputs[1]
        maker = value.producer()
        if value.const_value is not None and maker is None:
            found.append((value.const_value.numpy(), lambda new, at=value: setattr(at, "const_value", ir.tensor(new))))
        elif maker is not None and maker.op_type == "Constant":
            array = maker.attributes["value"].as_tensor().numpy()
            change = lambda new, at=maker: at.attributes.__setitem__("value", ir.AttrTensor("value", ir.tensor(new)))  # noqa: E731
            found.append((array, change))
    return [pair for pair in found if pair[0].ndim >= 2 and pair[0].shape[0] > 1]


def judged(path, faulty, request):
    """(whether the fp32 row finds the fault, whether it is found beside the model's own movement)."""
    result = compare_job(str(path), str(faulty), request, precision="fp32")
    if all(row["passed"] for row in result["outputs"]):
        return False, False

    def call(_, **arguments):
        return movement_job(**arguments)

    settled = settle(call, Artifact.of(path, "onnx"), faulty, result, request, {})
    return True, any(not row["passed"] for row in settled["outputs"])


def main():
    """Runs every fault in every model."""
    made = {}
    for title, name in MODELS.items():
        row = targets_models.ROWS[name]
        data, _, _ = targets_models.laid(row, Path.home() / ".cache" / "deploykit-benchmarks" / "targets" / name)
        request = data_request(str(data), "parity", samples=2)
        path = Path(row.source)
        layers = len(weights(graph.load(path)))
        made[title] = {"layers": layers, "faults": {}}
        for fault, change in FAULTS.items():
            count = {"tried": 0, "row": 0, "beside": 0}
            for place in sorted({round(at) for at in np.linspace(0, layers - 1, _LAYERS)}):
                model = graph.load(path)
                values, replace = weights(model)[place]
                replace(change(values))
                with tempfile.TemporaryDirectory() as folder:
                    faulty = Path(folder) / "faulty.onnx"
                    graph.save(model, faulty)
                    by_row, beside = judged(path, faulty, request)
                count["tried"] += 1
                count["row"] += by_row
                count["beside"] += beside
            made[title]["faults"][fault] = count
            print(title, fault, count, flush=True)
        OUT.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
