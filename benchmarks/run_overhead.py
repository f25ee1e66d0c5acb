"""What `deploykit run` costs over the vendor calls that it makes.

One side is the digits pipeline from nothing (`deploykit run --no-cache`). The other is the sum of the bare vendor calls
of the same job, each in a process of its own as a script would make them: export, the simplifiers, calibration and
quantization for each scheme, conversions, the runs over the data that parity and accuracy need, and the timed seconds
of the benchmark.

Use: make bench, or python benchmarks/run_overhead.py [--rounds N]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from timing import print_ratio, wall

ROOT = Path(__file__).parents[1]
DIGITS = ROOT / "examples" / "digits"
CALLS = Path(__file__).with_name("vendor_calls.py")
BENCH_SECONDS = 1.0  # `bench.seconds` of the example
NAMES = (
    "export",
    "onnxsim",
    "onnxslim",
    "onnxscript",
    "fp16",
    "int8-uint8",
    "int8-symmetric",
    "onnxruntime-fp32",
    "onnxruntime-fp16",
    "onnxruntime-int8",
    "openvino-fp32",
    "openvino-fp16",
    "openvino-int8",
    "tensorrt-rtx-fp16",
    "tensorrt-rtx-int8",
    "coreml-fp16",
    "coreml-int8-weights",
)


# The same calls with torch and TensorFlow hidden from coremltools, which deploykit's worker does.
ALONE = {"coreml-fp16": "coreml-fp16-alone", "coreml-int8-weights": "coreml-int8-weights-alone"}


def main() -> None:
    """Runs both sides in turn and prints the ratios, with the vendor calls one by one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    if not (DIGITS / "weights.safetensors").exists():
        wall([sys.executable, str(DIGITS / "train.py")])
    single: dict[str, list[float]] = {name: [] for name in (*NAMES, *ALONE.values())}
    times: dict[str, list[float]] = {"deploykit run --no-cache": [], "bare vendor calls": [], "the same, hidden": []}
    deploykit = str(Path(sys.executable).with_name("deploykit"))
    with tempfile.TemporaryDirectory() as folder:
        run = [deploykit, "run", str(DIGITS / "deploykit.yaml"), "--no-cache", "--output", str(Path(folder) / "out")]
        for _ in range(rounds):
            times["deploykit run --no-cache"].append(wall(run))
            for name in single:
                single[name].append(wall([sys.executable, str(CALLS), name, str(DIGITS), folder, str(BENCH_SECONDS)]))
            times["bare vendor calls"].append(sum(single[name][-1] for name in NAMES))
            times["the same, hidden"].append(sum(single[ALONE.get(name, name)][-1] for name in NAMES))
    for name, values in single.items():
        print(f"  {name:34} median {statistics.median(values):8.3f} s")
    print_ratio("The digits pipeline", times, "deploykit run --no-cache", "bare vendor calls")
    print_ratio(
        "The same with torch and TensorFlow hidden from coremltools",
        times,
        "deploykit run --no-cache",
        "the same, hidden",
    )


if __name__ == "__main__":
    main()
