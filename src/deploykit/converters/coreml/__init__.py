"""Core ML: ML Programs (`.mlpackage`) lowered from ONNX by our own front-end; coremltools has none since version 6."""

from __future__ import annotations

import importlib.util
import sys

from deploykit.route import Route
from deploykit.target import QuantizationScheme, Target

# coremltools looks for each of them when it is imported; what it would do with them is not used here.
_FOUND = ("torch", "transformers", "tensorflow", "sklearn", "xgboost", "executorch")
# What the package is asked besides the model's computation, which both its front-ends and ours do.
_ANY_ROUTE = (
    "minimum_deployment_target",
    "class_labels",
    "class_output",
    "author",
    "license",
    "description",
    "model_version",
    "describe.*",
    "device_check",
)


def why_not_here() -> str | None:
    """Why a package is not executed on this machine; None on a Mac that has coremltools."""
    if sys.platform != "darwin":
        return "Core ML runs on Apple systems only: its packages are made here, and their values simulated"
    if importlib.util.find_spec("coremltools") is None:
        return "coremltools is not installed: pip install 'deploykit[coreml]'"
    return None


TARGET = Target(
    name="coreml",
    title="Core ML",
    suffix=".mlpackage",
    format="coreml",
    extra="coreml",
    packages=("coremltools",),
    distributions=("coremltools",),
    precisions=("fp32", "fp16", "int8-weights", "int4-weights", "int8", "mixed"),
    versions=("iOS17", "iOS16", "iOS18", "iOS26", "macOS13", "macOS14", "macOS15", "macOS26"),
    options={
        "minimum_deployment_target": "iOS16, iOS17 (the default), iOS18, iOS26; or macOS13, 14, 15, 26",
        "compute_precision": "fp32 or fp16, the model's own by default; fp16 is measured on --calib",
        "io_precision": "fp32 (the default) or fp16: float inputs and outputs beside compute_precision=fp16",
        "image_input": "NAME, NAME:bgr, NAME:gray:nhwc, or true: an input that is to be an image, by its preprocessing",
        "image_scale": "what a pixel of 0..255 is multiplied with, 1/255, where there is no preprocessing contract",
        "image_bias": "what is added then, one number or one a channel: -1 or -0.485,-0.456,-0.406",
        "class_labels": "FILE with a label a line, or a JSON list: the output becomes a label and a dictionary",
        "class_output": "NAME of the output of class_labels, where the model has several",
        "author": "author in the package's metadata",
        "license": "licence in the package's metadata",
        "description": "short description in the package's metadata",
        "model_version": "version in the package's metadata",
        "describe.*": "describe.NAME=TEXT: description of an input or output",
        "device_check": "true (the default) or false: whether OUT.check, which runs the package on a Mac, is written",
        "route": "auto (the default), onnx, torch or tensorflow: the way from a PyTorch or TensorFlow source",
    },
    scheme=QuantizationScheme(
        activation="int8",
        symmetric_activations=True,
        per_channel=True,
        quantize_bias=False,
    ),
    converter="deploykit.converters.coreml.convert:convert_job",
    support="deploykit.converters.coreml.support:support_job",
    runtime="deploykit.converters.coreml.runtime:load",
    inspect="deploykit.converters.coreml.inspect:describe",
    worker="coreml",
    measured="coreml",
    # coremltools imports them where it finds them: 8 s and 1 GB for front-ends that are not used here.
    blocked=("torch", "transformers", "tensorflow", "sklearn", "xgboost"),
    runs_on="deploykit.converters.coreml:why_not_here",
    simulated=True,
    renames=True,
    beside="deploykit.converters.coreml.device_check.job:check_job",
    files=("class_labels",),
    takes=("calib", "contract", "sizes"),
    makes={"fp16": {"compute_precision": "fp16"}},
    routes={
        "torch": Route(
            title="coremltools, from PyTorch's own program",
            writer="deploykit.converters.coreml.torch_route:write",
            kinds=("python", "pt2", "torchscript"),
            options=_ANY_ROUTE,
            hides=tuple(name for name in _FOUND if name != "torch"),
            beside="deploykit.converters.coreml.device_check.job:write_direct",
        ),
        "tensorflow": Route(
            title="coremltools, from TensorFlow's own graph",
            writer="deploykit.converters.coreml.tensorflow_route:write",
            kinds=("savedmodel", "keras", "hdf5"),
            options=_ANY_ROUTE,
            hides=tuple(name for name in _FOUND if name != "tensorflow"),
            beside="deploykit.converters.coreml.device_check.job:write_direct",
        ),
    },
)
