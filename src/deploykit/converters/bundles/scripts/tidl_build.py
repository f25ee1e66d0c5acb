"""Compiles this bundle for TI's accelerators: python3 build.py, in the environment of edgeai-tidl-tools."""

import json
import os
import pathlib
import sys

import numpy
import onnxruntime

HERE = pathlib.Path(__file__).resolve().parent
os.chdir(HERE)  # paths in lists count from here
BUNDLE = json.loads((HERE / "bundle.json").read_text(encoding="utf-8"))


def main() -> None:
    """Runs the samples through the compiling provider, which writes the artifacts."""
    if "TIDLCompilationProvider" not in onnxruntime.get_available_providers():
        sys.exit("this onnxruntime has no TIDLCompilationProvider: it is the one of edgeai-tidl-tools")
    if not os.environ.get("TIDL_TOOLS_PATH"):
        sys.exit("TIDL_TOOLS_PATH is not set: it names the tools of the processor")
    files = (HERE / BUNDLE["calibration"]["list"]).read_text(encoding="utf-8").splitlines()
    artifacts = HERE / BUNDLE["makes"]
    artifacts.mkdir(exist_ok=True)
    options = {
        "tidl_tools_path": os.environ["TIDL_TOOLS_PATH"],
        "artifacts_folder": str(artifacts),
        "tensor_bits": int(BUNDLE["options"]["tensor_bits"]),
        "accuracy_level": int(BUNDLE["options"]["accuracy_level"]),
        "advanced_options:calibration_frames": len(files),
        "advanced_options:calibration_iterations": 5,
    }
    session = onnxruntime.InferenceSession(
        str(HERE / BUNDLE["model"]),
        providers=["TIDLCompilationProvider", "CPUExecutionProvider"],
        provider_options=[options, {}],
    )
    names = [spec["name"] for spec in BUNDLE["inputs"]]
    for line in files:
        arrays = [numpy.load(HERE / path, allow_pickle=False) for path in line.split()]
        session.run(None, dict(zip(names, arrays, strict=True)))
    print(f"wrote {artifacts}")


if __name__ == "__main__":
    main()
