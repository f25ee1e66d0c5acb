"""Core ML: ML Programs (`.mlpackage`) lowered from ONNX by our own front-end; coremltools has none since version 6."""

from __future__ import annotations

import importlib.util
import sys

from deploykit.route import Route
from deploykit.target import QuantizationScheme, Target

# coremltools looks for each of them when it is imported; what it would do with them is not used here.
_FOUND = ("torch", "transformers", "tensorflow", "sklearn", "xgboost", "executorch")


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
    precisions=("fp32", "fp16", "int8-weights", "int8", "mixed"),
    versions=("iOS17", "iOS16", "iOS18"),
    options={"minimum_deployment_target": "iOS16, iOS17 (the default) or iOS18: the oldest system that is to load it"},
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
    takes=("calib", "contract", "sizes"),
    routes={
        "torch": Route(
            title="coremltools, from PyTorch's own program",
            writer="deploykit.converters.coreml.torch_route:write",
            kinds=("python", "pt2", "torchscript"),
            options=("minimum_deployment_target",),
            hides=tuple(name for name in _FOUND if name != "torch"),
        ),
        "tensorflow": Route(
            title="coremltools, from TensorFlow's own graph",
            writer="deploykit.converters.coreml.tensorflow_route:write",
            kinds=("savedmodel", "keras", "hdf5"),
            options=("minimum_deployment_target",),
            hides=tuple(name for name in _FOUND if name != "tensorflow"),
        ),
    },
)
