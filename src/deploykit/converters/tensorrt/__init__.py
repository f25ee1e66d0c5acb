"""TensorRT: engines are built on a machine with the package and a GPU; elsewhere a build bundle is written."""

from __future__ import annotations

from deploykit import lazy
from deploykit.converters.tensorrt.device import why_no_device
from deploykit.converters.tensorrt.options import CLASSIC, SHARED
from deploykit.target import QuantizationScheme, Target


def why_not_here() -> str | None:
    """Why no engine is built or run on this machine: there is no GPU, or no TensorRT."""
    return why_no_device() or (None if lazy.installed("tensorrt") else "the package tensorrt is not installed")


TARGET = Target(
    name="tensorrt",
    title="TensorRT",
    suffix=".engine",
    format="tensorrt",
    extra=None,
    packages=(),
    distributions=("tensorrt",),
    precisions=("fp32", "fp16", "bf16", "int8", "int4-weights", "mixed"),
    versions=("11.1", "10.16", "10.1", "8.6", "8.5"),
    options={**SHARED, **CLASSIC},
    # As TensorRT for RTX: int8 on both sides, zero points of 0, a float bias, the residual of an Add with its own Q/DQ.
    scheme=QuantizationScheme(
        activation="int8",
        symmetric_activations=True,
        per_channel=True,
        quantize_bias=False,
        quantize_residual=True,
    ),
    converter="deploykit.converters.tensorrt.convert:convert_job",
    runtime="deploykit.converters.tensorrt.runtime:load",
    inspect="deploykit.converters.tensorrt.inspect:describe",
    bundle="deploykit.converters.tensorrt.bundle:bundle_job",
    builds_on="deploykit.converters.tensorrt:why_not_here",
    runs_on="deploykit.converters.tensorrt:why_not_here",
    refuses="deploykit.converters.tensorrt.loading:refuse_foreign",
    worker="tensorrt",
    custom_ops="a TensorRT plugin library",
    magic=(b"ftrt", b"ptrt"),
    takes=("profiles", "sizes"),
    tables={
        "11.1": "tensorrt-11.1",
        "10.16": "tensorrt-10.16",
        "10.1": "tensorrt-10.1",
        "8.6": "tensorrt-8.6",
        "8.5": "tensorrt-8.5",
    },
    numbered=True,
    elsewhere="on the machine with the GPU: trtexec --onnx=MODEL --saveEngine=OUT.engine",
)
