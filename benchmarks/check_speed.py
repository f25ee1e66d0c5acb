"""`check` of models of a thousand nodes: seconds a source, imports apart, and against the bare calls of the vendors.

    python benchmarks/check_speed.py [ROUNDS] [MODEL.onnx ...]

The bare calls are what deploykit asks of the engines, with nothing around it: OpenVINO's query_model, TensorRT-RTX's
supports_model_v2, and an ONNX Runtime session, one after the other in a process of their own. Runs alternate.
Processor seconds are those of this process and its workers together: on a machine that does nothing else, the wall time
is below them, since the engines work at the same time.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from check_models import convolutions, transformer

import deploykit
from deploykit.isolation import workers
from deploykit.target import target_names

LIMIT_S = 5.0  # processor seconds for all targets, after imports
PROCESSOR = "all, processor seconds"


def main() -> int:
    """Prints a table for each model; exits 1 when a check of all targets takes longer than its limit."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    with tempfile.TemporaryDirectory() as folder, workers():
        models = [Path(given) for given in sys.argv[2:]] or [
            convolutions(Path(folder) / "convolutions.onnx"),
            transformer(Path(folder) / "transformer.onnx"),
        ]
        tiny = convolutions(Path(folder) / "tiny.onnx", nodes=3)
        started = time.perf_counter()
        deploykit.check(tiny, targets=["all"])
        print(f"imports, all workers at once: {time.perf_counter() - started:.2f} s\n")
        slow = [model for model in models if measure(model, rounds) > LIMIT_S]
    for model in slow:
        print(f"{model.name}: all targets take more than {LIMIT_S} processor seconds")
    return 1 if slow else 0


def measure(model: Path, rounds: int) -> float:
    """Prints the medians for one model; returns the processor seconds that all targets take."""
    seconds: dict[str, list[float]] = {}
    for _ in range(rounds):
        for target in [*target_names(), "all"]:
            started, before = time.perf_counter(), processor_seconds()
            report = deploykit.check(model, targets=[target])
            seconds.setdefault(target, []).append(time.perf_counter() - started)
        seconds.setdefault(PROCESSOR, []).append(processor_seconds() - before)
        for call, spent in bare(model).items():
            seconds.setdefault(call, []).append(spent)
    nodes = report.metrics["targets"][0]["nodes"]
    print(f"{model.name}: {nodes:,} nodes, {len(report.metrics['targets'])} targets and versions")
    for name, values in seconds.items():
        print(f"  {name:34} median {statistics.median(values):6.2f} s   (min {min(values):.2f}, max {max(values):.2f})")
    sums = [sum(values) for values in zip(*(seconds[call] for call in BARE), strict=True)]
    ratio = statistics.median(ours / theirs for ours, theirs in zip(seconds["all"], sums, strict=True))
    print(f"  all targets / the bare calls of three engines in turn: {ratio:.2f}\n")
    return statistics.median(seconds[PROCESSOR])


def processor_seconds() -> float:
    """User and system time of this process and its workers so far."""
    here = psutil.Process()
    return sum(sum(process.cpu_times()[:2]) for process in (here, *here.children(recursive=True)))


BARE = ("bare OpenVINO query_model", "bare TensorRT-RTX supports_model", "bare ONNX Runtime session")


def bare(model: Path) -> dict[str, float]:
    """Seconds of the vendors' calls, measured in a process that has imported them all."""
    done = subprocess.run([sys.executable, __file__, "--bare", str(model)], check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def bare_calls(model: Path) -> dict[str, float]:
    """The calls themselves."""
    import onnxruntime
    import openvino
    import tensorrt_rtx as trt

    core = openvino.Core()
    core.available_devices  # noqa: B018 - loads the plugins, which belongs to the imports
    log = trt.Logger()
    builder = trt.Builder(log)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, log)
    calls = {
        BARE[0]: lambda: core.query_model(core.read_model(model), "CPU"),
        BARE[1]: lambda: parser.supports_model_v2(model.read_bytes(), str(model)),
        BARE[2]: lambda: onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"]),
    }
    seconds = {}
    for name, call in calls.items():
        started = time.perf_counter()
        call()
        seconds[name] = time.perf_counter() - started
    return seconds


if __name__ == "__main__":
    if sys.argv[1:2] == ["--bare"]:
        print(json.dumps(bare_calls(Path(sys.argv[2]))))
        sys.exit(0)
    sys.exit(main())
