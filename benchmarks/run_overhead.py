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

from timing import interleaved, print_ratio, wall

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


def main() -> None:
    """Runs both sides in turn and prints the ratio, with the vendor calls one by one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    if not (DIGITS / "weights.safetensors").exists():
        wall([sys.executable, str(DIGITS / "train.py")])
    single: dict[str, list[float]] = {name: [] for name in NAMES}
    with tempfile.TemporaryDirectory() as folder:

        def vendors() -> float:
            for name in NAMES:
                single[name].append(wall([sys.executable, str(CALLS), name, str(DIGITS), folder, str(BENCH_SECONDS)]))
            return sum(times[-1] for times in single.values())

        def pipeline() -> float:
            deploykit = str(Path(sys.executable).with_name("deploykit"))
            out = str(Path(folder) / "out")
            return wall([deploykit, "run", str(DIGITS / "deploykit.yaml"), "--no-cache", "--output", out])

        times = interleaved({"deploykit run --no-cache": pipeline, "bare vendor calls": vendors}, rounds)
    for name, values in single.items():
        print(f"  {name:34} median {statistics.median(values):8.3f} s")
    print_ratio("The digits pipeline", times, "deploykit run --no-cache", "bare vendor calls")


if __name__ == "__main__":
    main()
