"""What winml-cli and onnxruntime's mobile usability checker say of one model; runs in the peers' own environment.

python peer_verdicts.py MODEL.onnx prints one JSON object: {peer: {"nodes": {name: verdict}, "partitions": count or
null, "seconds": ...}}. All nodes of the model need names, and winml-cli needs fixed shapes.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

import onnx

# deploykit's name -> the names of the execution provider and device there
WINML = {
    "openvino": ("OpenVINOExecutionProvider", "CPU"),
    "tensorrt-rtx": ("NvTensorRTRTXExecutionProvider", "GPU"),
    "onnxruntime@qnn": ("QNNExecutionProvider", "NPU"),
}


def winml(path: Path) -> dict[str, Any]:
    """The verdict of `winml analyze` on each node of the main graph: supported, partial, unsupported or unknown."""
    from winml.modelkit.analyze import ONNXStaticAnalyzer

    found = {}
    for target, (provider, device) in WINML.items():
        said: list[str] = []
        started = time.perf_counter()
        model = onnx.shape_inference.infer_shapes(onnx.load(path))
        ONNXStaticAnalyzer().analyze_from_proto(
            model,
            ep=provider,
            device=device,
            enable_information=False,
            model_path=str(path),
            on_node_result=lambda result, into=said: into.append(result.result.classification.value),
        )
        names = [node.name for node in model.graph.node]
        if len(names) != len(said):
            raise RuntimeError(f"{len(said)} answers for {len(names)} nodes")
        seconds = time.perf_counter() - started
        found[f"winml {target}"] = {
            "nodes": dict(zip(names, said, strict=True)),
            "partitions": None,
            "seconds": seconds,
        }
    return found


def mobile(path: Path) -> dict[str, Any]:
    """What the mobile usability checker would give to NNAPI and Core ML, by operator type and fixed shapes."""
    from onnxruntime.tools.mobile_helpers import usability_checker as checker

    model = onnx.shape_inference.infer_shapes(onnx.load(path))
    asked = {
        "onnxruntime@nnapi": lambda: checker.check_nnapi_partitions(model, True),
        "onnxruntime@coreml": lambda: checker.check_coreml_partitions(model, True, "coreml_supported_mlprogram_ops.md"),
    }
    found = {}
    for target, ask in asked.items():
        started = time.perf_counter()
        told = ask()
        seconds = time.perf_counter() - started
        taken = {node.name for group in told.supported_groups for node in group}
        nodes = {node.name: "supported" if node.name in taken else "unsupported" for node in model.graph.node}
        found[f"mobile {target}"] = {"nodes": nodes, "partitions": len(told.supported_groups), "seconds": seconds}
    return found


def main() -> None:
    """Asks both and prints what they say; a peer that fails is a line on stderr."""
    logging.disable(logging.WARNING)
    path = Path(sys.argv[1])
    answers: dict[str, Any] = {}
    for ask in (winml, mobile):
        try:
            answers |= ask(path)
        except Exception as problem:  # the other peer's answer still counts
            print(f"{path.name}: {ask.__name__}: {type(problem).__name__}: {problem}", file=sys.stderr)
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
