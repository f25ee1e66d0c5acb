"""Small models in ONNX text, and what it takes to quantize and run them in this process."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime as ort

from deploykit import graph
from deploykit.data import Sample
from deploykit.quantize.calibration import Calibration, tapped_session
from deploykit.quantize.plan import Plan, make_plan, observable
from deploykit.quantize.prepare import load_float
from deploykit.quantize.qdq import Inserter, shared_parameters
from deploykit.quantize.ranges import Ranges
from deploykit.target import QuantizationScheme

if TYPE_CHECKING:
    from pathlib import Path

    import onnx_ir as ir

SYMMETRIC = QuantizationScheme()
AFFINE = QuantizationScheme(
    activation="uint8", symmetric_activations=False, quantize_bias=True, quantize_residual=True, reduce_range=True
)


def onnx_text(text: str, path: Path, opset: int = 17, **weights: np.ndarray) -> Path:
    """Parses `text` (a graph) and saves it with the named weights as initializers."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text}')
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def run(path: Path, feeds: dict[str, np.ndarray], *, optimize: bool = True) -> dict[str, np.ndarray]:
    """Outputs of a model in onnxruntime."""
    options = ort.SessionOptions()
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True))


def operators(graph: onnx.GraphProto) -> list[str]:
    """Operators of the graph and of all bodies in it."""
    found = []
    for node in graph.node:
        found.append(node.op_type)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found += operators(attribute.g)
    return found


def sqnr_db(reference: np.ndarray, found: np.ndarray) -> float:
    """Signal to quantization noise in dB."""
    reference, found = reference.astype(np.float64), found.astype(np.float64)
    return float(10 * np.log10(np.sum(reference**2) / max(np.sum((reference - found) ** 2), 1e-300)))


@dataclasses.dataclass
class Quantized:
    path: Path
    model: ir.Model
    plan: Plan
    ranges: Ranges
    saturating: dict[str, float]

    def nodes(self, op: str) -> list[ir.Node]:
        return [node for node in self.model.graph if node.op_type == op]

    def producer_of(self, name: str, index: int) -> ir.Node:
        """What computes input `index` of the node `name`."""
        node = next(node for node in self.model.graph if node.name == name)
        producer = node.inputs[index].producer()
        assert producer is not None
        return producer


def ranges_of(model: ir.Model, feeds: list[dict[str, np.ndarray]], method: Any = "minmax") -> Ranges:
    """Ranges of everything observable over the feeds."""
    names = observable(model)
    samples = [Sample(feed, None, f"sample {index}") for index, feed in enumerate(feeds)]
    with tapped_session(model, names) as session:
        tensors = Calibration(session, names, lambda: samples, total=len(feeds), carry={}).run(method)
    return Ranges("model", "data", method, len(feeds), tensors)


def quantized(
    path: Path,
    feeds: list[dict[str, np.ndarray]],
    scheme: QuantizationScheme = SYMMETRIC,
    *,
    method: Any = "minmax",
    exclude: tuple[str, ...] = (),
) -> Quantized:
    """Plans, calibrates and rewrites the model at `path`; saves and fully checks the result."""
    model, _ = load_float(path)
    ranges = ranges_of(model, feeds, method)
    plan = make_plan(model, scheme, exclude=exclude, unseen=ranges.unseen(observable(model)))
    saturating: dict[str, float] = {}
    if plan.nodes:
        inserter = Inserter(model, plan, scheme, shared_parameters(plan, ranges, scheme))
        inserter.run()
        saturating = inserter.saturating
    graph.infer_shapes(model)
    out = path.with_name(f"{path.stem}.int8.onnx")
    graph.save(model, out)
    onnx.checker.check_model(str(out), full_check=True)
    return Quantized(out, model, plan, ranges, saturating)
