"""Scores one model of the quantization benchmark in a process of its own, whoever made it.

python benchmarks/quantization_score.py FLOAT.onnx CANDIDATE.onnx FEEDS OUT.json [--metric M] [--carry INPUT=OUTPUT]
                                        [--engine onnxruntime|openvino]

Writes the metric with its parts by sample, SQNR of all outputs against float (onnxruntime without graph optimisation),
and the share of multiply-accumulates whose operands are both 8-bit in the graph.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from deploykit import graph
from deploykit.comparison import Side
from deploykit.data.samples import Sample
from deploykit.evaluation import make_metric
from deploykit.graph.counting import node_macs
from deploykit.parity import TOLERANCES, OutputComparison
from deploykit.quantize.sizes import macs_of_sample
from deploykit.runtime import RuntimeOptions, open_runtime

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx_ir as ir

INTEGER = frozenset(
    {"QLinearConv", "QLinearMatMul", "QGemm", "ConvInteger", "MatMulInteger", "MatMulIntegerToFloat", "QAttention",
     "DynamicQuantizeMatMul", "DynamicQuantizeLSTM"}
)  # fmt: skip
# What hands on the quantized values as they are, wherever a tool puts its Q/DQ around it.
_MOVES = frozenset(
    {
        "Reshape",
        "Transpose",
        "Squeeze",
        "Unsqueeze",
        "Identity",
        "Flatten",
        "Slice",
        "Expand",
        "MaxPool",
        "GlobalMaxPool",
        "ReduceMax",
        "ReduceMin",
        "Split",
        "Gather",
    }
)


def samples(folder: Path) -> list[Sample]:
    """The feeds of a folder with their labels."""
    found = []
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as file:
            arrays = dict(file)
        label = arrays.pop("y", None)
        found.append(Sample(arrays, None if label is None else label[()], path.name))
    return found


def eight_bit(node: ir.Node) -> bool:
    """Whether the node multiplies 8-bit integers by 8-bit integers."""
    if node.op_type in INTEGER:
        return True
    return node.op_type in {"Conv", "ConvTranspose", "MatMul", "Gemm"} and all(map(_dequantized, node.inputs[:2]))


def _dequantized(value: ir.Value | None) -> bool:
    producer = None if value is None else value.producer()
    if producer is not None and producer.op_type in _MOVES:
        return _dequantized(producer.inputs[0])
    if producer is not None and producer.op_type == "Concat":
        return all(map(_dequantized, producer.inputs))
    if producer is None or producer.op_type != "DequantizeLinear":
        return False
    source = producer.inputs[0]
    return source is not None and (source.dtype is None or source.dtype.itemsize <= 1)


def share(path: Path, sample: Sample) -> float | None:
    """Share of the MACs of one sample in such nodes; bodies of If and Loop count as they stand."""
    import onnx_ir as ir

    model = graph.infer_shapes(graph.load(path))
    counted = macs_of_sample(model, sample)
    total = sum(counted.values())
    eight = sum(
        counted.get(node.name or "", node_macs(node))
        for node in ir.traversal.RecursiveGraphIterator(model.graph)
        if eight_bit(node)
    )
    return eight / total if total else None


def openvino(path: Path) -> Callable[[dict], dict]:
    """The ONNX file in OpenVINO, with computation in its own precisions."""
    import openvino as ov
    from openvino import properties

    core = ov.Core()
    model = core.compile_model(core.read_model(path), "CPU", {properties.hint.inference_precision(): ov.Type.f32})
    names = [output.get_any_name() for output in model.outputs]

    def predict(feeds: dict) -> dict:
        found = model(feeds)
        return {name: np.array(found[index]) for index, name in enumerate(names)}

    return predict


def score(arguments: argparse.Namespace) -> dict:
    """Everything that is measured of one model."""
    feeds = samples(arguments.feeds)
    carry = dict(pair.split("=") for pair in arguments.carry)
    float_side = Side(open_runtime(arguments.float, RuntimeOptions(optimize=False)), carry)
    same = arguments.engine == "onnxruntime"
    side = Side(open_runtime(arguments.candidate) if same else openvino(arguments.candidate), carry)
    metric = make_metric(arguments.metric, [arguments.float]) if arguments.metric else None
    rows: dict[str, OutputComparison] = {}
    first = None
    for sample in feeds:
        expected, found = float_side(sample), side(sample)
        first = first or Sample(side.feeds(sample), None, "")
        for name, value in expected.items():
            if name in found and name not in carry.values():
                rows.setdefault(name, OutputComparison(name, TOLERANCES["int8"])).add(value, found[name])
        if metric is not None:
            metric.add(found, sample.label)
    outputs = [row.result() for row in rows.values()]
    return {
        "value": metric.value() if metric else None,
        "higher_is_better": metric.higher_is_better if metric else None,
        "unit": metric.unit if metric else None,
        "pairs": metric.pairs if metric else [],
        "sqnr_db": min((row["sqnr_db"] for row in outputs if row["sqnr_db"] is not None), default=None),
        "cosine": min((row["cosine"] for row in outputs if row["cosine"] is not None), default=None),
        "int8_macs": share(arguments.candidate, first) if same and first else None,
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("float", "candidate", "feeds", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--metric")
    parser.add_argument("--carry", action="append", default=[])
    parser.add_argument("--engine", default="onnxruntime")
    arguments = parser.parse_args()
    arguments.out.write_text(json.dumps(score(arguments)), encoding="utf-8")


if __name__ == "__main__":
    main()
