"""Converts the SavedModel of this bundle with TF-TRT: python3 build.py, with TensorFlow 2.17 or older."""

import json
import os
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy
import tensorflow as tf

HERE = pathlib.Path(__file__).resolve().parent
os.chdir(HERE)  # paths in lists count from here
BUNDLE = json.loads((HERE / "bundle.json").read_text(encoding="utf-8"))


def samples() -> Iterator[list[Any]]:
    """The calibration samples, as lists of tensors in the order of the inputs."""
    calibration = BUNDLE["calibration"]
    for line in (HERE / calibration["list"]).read_text(encoding="utf-8").splitlines() if calibration else ():
        yield [tf.constant(numpy.load(HERE / path, allow_pickle=False)) for path in line.split()]


def main() -> None:
    """Converts, builds and saves."""
    if tuple(map(int, tf.__version__.split(".")[:2])) > (2, 17):
        sys.exit(f"TensorFlow {tf.__version__} has no TF-TRT any more: {BUNDLE['instead']}")
    options = BUNDLE["options"]
    mode = options["precision_mode"]
    if mode == "INT8" and not BUNDLE["calibration"]:
        sys.exit("INT8 needs samples: make this bundle again with --calib DATA")
    trt = tf.experimental.tensorrt
    params = trt.ConversionParams(
        precision_mode=mode,
        max_workspace_size_bytes=int(options["workspace"]),
        minimum_segment_size=int(options["minimum_segment_size"]),
        use_calibration=mode == "INT8",
    )
    converter = trt.Converter(input_saved_model_dir=str(HERE / BUNDLE["model"]), conversion_params=params)
    converter.convert(**({"calibration_input_fn": samples} if mode == "INT8" else {}))
    output = HERE / BUNDLE["makes"]
    converter.save(str(output))
    print(f"wrote {output}")


if __name__ == "__main__":
    main()
