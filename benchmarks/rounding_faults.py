"""How well a fault in an INT8 artifact is told from rounding: by an SQNR of the whole, and segment by segment.

Use: python benchmarks/rounding_faults.py [--layers N] [--samples N] [--only NAME]...

Three models that no two engines compute within 30 dB are quantized for OpenVINO. Then one layer of the ONNX is changed,
and the changed model converted: an artifact with a known fault, compared with the model as it was. Beside the segments
stands the limit that the model's own movement would give: the least SQNR between the model and itself with each scale
moved by 5e-7, up or down, drawn five times, less 3 dB, and no more than 30 dB.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import numpy_helper
from quantization_models import MODELS

from deploykit.comparison import compare_job
from deploykit.converters.openvino.convert import convert_job
from deploykit.data.request import data_request
from deploykit.progress import silent
from deploykit.quantize.settings import Settings
from deploykit.quantize.static import quantize_static
from deploykit.segments import segments_job
from deploykit.spread import spread_job
from deploykit.target import get_target

if TYPE_CHECKING:
    from collections.abc import Callable

RESULT = Path(__file__).with_suffix(".json")
NAMES = ("PP-OCR v4 rec", "PP-OCR v4 det", "MiniLM-L6")
SEEDS = 5


class Layer:
    """A node with quantized weights, in a model that may be changed."""

    def __init__(self, model: onnx.ModelProto, index: int) -> None:
        """index: among the nodes that read a DequantizeLinear of constants."""
        self.graph = model.graph
        self.constants = {tensor.name: tensor for tensor in model.graph.initializer}
        self.made = {name: node for node in model.graph.node for name in node.output}
        layers = [node for node in model.graph.node if self._dequantized(node, constant=True)]
        self.count = len(layers)
        self.node = layers[index]
        self.weights = self._dequantized(self.node, constant=True)
        self.activation = self._dequantized(self.node, constant=False)

    def _dequantized(self, node: onnx.NodeProto, *, constant: bool) -> onnx.NodeProto | None:
        for name in node.input:
            found = self.made.get(name)
            if found is None or found.op_type != "DequantizeLinear":
                continue
            if (found.input[0] in self.constants) is constant:
                return found
        return None

    def bias(self) -> tuple[onnx.NodeProto, int] | None:
        """The node and the place of the input that is added."""
        if self.node.op_type in ("Conv", "ConvTranspose", "Gemm"):
            return (self.node, 2) if len(self.node.input) > 2 and self.node.input[2] in self.constants else None
        readers = [node for node in self.graph.node if self.node.output[0] in node.input]
        for reader in readers:
            if reader.op_type == "Add":
                for place, name in enumerate(reader.input):
                    if name in self.constants:
                        return reader, place
        return None

    def change(self, node: onnx.NodeProto, place: int, function: Callable[[np.ndarray], np.ndarray]) -> None:
        """Gives a node a constant of its own in the place of one."""
        before = numpy_helper.to_array(self.constants[node.input[place]])
        name = f"fault_{len(self.graph.initializer)}"
        self.graph.initializer.append(numpy_helper.from_array(function(before).astype(before.dtype), name))
        node.input[place] = name


def scaled(factor: float, side: str) -> Callable[[Layer], bool]:
    """A fault: what the layer's integers stand for, times a factor. side: "weights" or "activation"."""

    def fault(layer: Layer) -> bool:
        node = layer.weights if side == "weights" else layer.activation
        if node is None:
            return False
        layer.change(node, 1, lambda scale: scale * factor)
        return True

    return fault


def one_channel_scaled(layer: Layer) -> bool:
    """One scale of those of the weights' channels."""

    def change(scale: np.ndarray) -> np.ndarray:
        changed = np.array(scale)
        changed[scale.size // 2] *= 1.05
        return changed

    assert layer.weights is not None
    scale = numpy_helper.to_array(layer.constants[layer.weights.input[1]])
    if scale.ndim == 1 and scale.size > 1:
        layer.change(layer.weights, 1, change)
        return True
    return False


def zero_point(layer: Layer) -> bool:
    """What the layer's integers stand for, moved by one level."""
    node = layer.activation
    if node is None or len(node.input) < 3:
        return False
    layer.change(node, 2, lambda zero: zero + 1 if zero < np.iinfo(zero.dtype).max else zero - 1)
    return True


def swapped(layer: Layer) -> bool:
    """Two output channels of the weights, with their scales as they are."""
    node = layer.weights
    assert node is not None
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)

    def change(weights: np.ndarray) -> np.ndarray:
        order = np.arange(weights.shape[axis])
        order[:2] = order[1::-1]
        return np.take(weights, order, axis)

    if numpy_helper.to_array(layer.constants[node.input[0]]).shape[axis] < 2:
        return False
    layer.change(node, 0, change)
    return True


def no_bias(layer: Layer) -> bool:
    """Zeros in the place of the bias."""
    found = layer.bias()
    if found is None:
        return False
    layer.change(*found, np.zeros_like)
    return True


def not_quantized(layer: Layer) -> bool:
    """The layer reads the float that its integers were made of."""
    node = layer.activation
    if node is None:
        return False
    for place, name in enumerate(layer.node.input):
        if name == node.output[0]:
            layer.node.input[place] = layer.made[node.input[0]].input[0]
    return True


FAULTS: dict[str, Callable[[Layer], bool]] = {
    "weight scale off by 1 %": scaled(1.01, "weights"),
    "weight scale off by 5 %": scaled(1.05, "weights"),
    "weight scale twice as large": scaled(2.0, "weights"),
    "scale of one weight channel off by 5 %": one_channel_scaled,
    "activation scale off by 1 %": scaled(1.01, "activation"),
    "activation scale off by 5 %": scaled(1.05, "activation"),
    "activation scale twice as large": scaled(2.0, "activation"),
    "zero point off by one": zero_point,
    "two weight channels swapped": swapped,
    "bias missing": no_bias,
    "activation left in float": not_quantized,
}


def quantized(name: str, folder: Path) -> Path:
    """The model's INT8 form for OpenVINO; the gate of accuracy is for others."""
    MODELS[name].make(folder)
    settings = Settings(scheme=get_target("openvino").scheme, data=data_request(str(folder / "calib"), "calibration"))
    quantize_static(folder / "model.onnx", folder / "q.onnx", settings, silent)
    return folder / "q.onnx"


def judged(parent: Path, changed: Path, data: dict[str, Any]) -> dict[str, Any]:
    """What both ways say of an artifact made of the changed model."""
    artifact = changed.with_suffix(".xml")
    convert_job(str(changed), str(artifact), {}, {}, {}, "int8")
    whole = compare_job(str(parent), str(artifact), data, precision="int8-parent")
    parts = segments_job(str(parent), str(artifact), data)
    return {
        "sqnr_db": whole["outputs"][0]["sqnr_db"],
        "wrong": parts["wrong"],
        "worst": parts["worst"],
        "elements": parts["elements"],
        "right": not parts["wrong"] and all(row["passed"] for row in parts["outputs"]),
        "first": parts["faults"][0]["tensor"] if parts["faults"] else None,
    }


def measure(name: str, folder: Path, layers: int, samples: int) -> dict[str, Any]:
    """A model's rows: each fault in layers evenly spaced over the model."""
    parent = quantized(name, folder)
    data = data_request(str(folder / "eval"), "parity", samples=samples)
    apart = [min(spread_job(str(parent), data, seed=seed).values()) for seed in range(SEEDS)]
    limit = min(30.0, min(apart) - 3)
    sound = judged(parent, parent, data)
    found: dict[str, Any] = {"layers": layers, "samples": samples, "apart_db": apart, "limit_db": limit}
    found |= {"sound": sound, "faults": {}}
    print(f"{name}: {apart} limit {limit:.1f} sound {sound}", flush=True)
    count = Layer(onnx.load(parent), 0).count
    for fault, inject in FAULTS.items():
        rows = []
        for index in np.unique(np.linspace(0, count - 1, layers).round().astype(int)):
            model = onnx.load(parent)
            layer = Layer(model, int(index))
            if not inject(layer):
                continue
            onnx.save(model, folder / "fault.onnx")
            rows.append({"layer": layer.node.name, **judged(parent, folder / "fault.onnx", data)})
        found["faults"][fault] = rows
        by_whole = sum(row["sqnr_db"] is not None and row["sqnr_db"] < limit for row in rows)
        by_parts = sum(not row["right"] for row in rows)
        print(f"  {fault:40} of {len(rows)}: whole {by_whole}, segments {by_parts}", flush=True)
    return found


def main() -> None:
    """Runs, prints and records the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--only", action="append", default=[])
    given = parser.parse_args()
    rows = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for name in given.only or NAMES:
        with tempfile.TemporaryDirectory() as folder:
            rows[name] = measure(name, Path(folder), given.layers, given.samples)
        RESULT.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
