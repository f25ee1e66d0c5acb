"""Takes a published voice-activity model to ONNX Runtime and OpenVINO, in FP32 and FP16.

    pip install --no-deps silero-vad
    python examples/vad/demo.py [--stream LABELLED.npz] [--no-cache]

The models are the ONNX files of the `silero-vad` package. LABELLED.npz holds `x`, int16 audio at 16 kHz, and `y`, one
label per 512 samples (1 speech, 0 none, -1 not scored); without it the example makes its own audio and compares outputs
only.
"""

import argparse
import importlib.util
import shutil
import sys
from pathlib import Path

import numpy as np

import data
import deploykit
from deploykit.render import render

HERE = Path(__file__).parent
LABELLED = HERE.parents[2] / "shared" / "models" / "silero_vad" / "vad_stream_dev.npz"
MODELS = ("silero_vad.onnx", "silero_vad_op18_ifless.onnx")


def prepare(stream: Path) -> bool:
    """Lays models and audio beside this file; returns whether the audio has labels."""
    package = importlib.util.find_spec("silero_vad")
    if package is None or package.origin is None:
        sys.exit("the models come from a package: pip install --no-deps silero-vad")
    for name in MODELS:
        shutil.copyfile(Path(package.origin).parent / "data" / name, HERE / name)
    if stream.is_file():
        shutil.copyfile(stream, HERE / "stream.npz")
        return True
    np.savez(HERE / "stream.npz", x=data.synthetic_stream())
    print("No labelled stream: this run makes its own audio and compares outputs only; no accuracy is measured.")
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stream", type=Path, default=LABELLED)
    parser.add_argument("--no-cache", action="store_true")
    options = parser.parse_args()
    labelled = prepare(options.stream)
    exit_code = 0
    for name in ("deploykit.yaml", "openvino.yaml"):
        only = () if labelled else ("check", "convert", "bench")
        report = deploykit.run(HERE / name, only=only, no_cache=options.no_cache)
        print(render(report, "table"))
        exit_code = max(exit_code, report.exit_code)
    refused = deploykit.check(HERE / "silero_vad.onnx", targets=["openvino"])
    print("Why OpenVINO gets the other file:")
    print(render(refused, "table"))
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
