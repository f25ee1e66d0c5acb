"""Builds the .rknn file of this bundle: python3 build.py, where RKNN-Toolkit2 is installed."""

import json
import os
import pathlib
import sys

from rknn.api import RKNN

HERE = pathlib.Path(__file__).resolve().parent
os.chdir(HERE)  # paths in lists count from here
BUNDLE = json.loads((HERE / "bundle.json").read_text(encoding="utf-8"))


def expect(code: int, what: str) -> None:
    """Ends the program where a call of the toolkit failed."""
    if code != 0:
        sys.exit(f"{what} failed with {code}")


def main() -> None:
    """Loads, builds and exports."""
    calibration = BUNDLE["calibration"]
    rknn = RKNN(verbose=False)
    rknn.config(target_platform=BUNDLE["options"]["target_platform"])
    loaded = rknn.load_onnx(
        model=str(HERE / BUNDLE["model"]),
        inputs=[spec["name"] for spec in BUNDLE["inputs"]],
        input_size_list=[spec["shape"] for spec in BUNDLE["inputs"]],
    )
    expect(loaded, "loading the model")
    dataset = str(HERE / calibration["list"]) if calibration else None
    expect(rknn.build(do_quantization=calibration is not None, dataset=dataset), "building")
    output = HERE / BUNDLE["makes"]
    expect(rknn.export_rknn(str(output)), "exporting")
    rknn.release()
    print(f"wrote {output}")


if __name__ == "__main__":
    main()
