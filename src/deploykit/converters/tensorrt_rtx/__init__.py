"""TensorRT for RTX: engines built ahead of time, without a GPU, for several GPU generations at once."""

from __future__ import annotations

import ctypes
import sys

from deploykit.converters.tensorrt.options import SHARED
from deploykit.target import QuantizationScheme, Target


def why_not_here() -> str | None:
    """Why an engine is not executed on this machine: the driver is missing, or there is no runtime for it yet."""
    library = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        ctypes.CDLL(library)
    except OSError:
        return f"no NVIDIA driver on this machine ({library} does not load): engines are built here, not run"
    return "deploykit builds TensorRT-RTX engines and checks them statically; it does not run them yet"


TARGET = Target(
    name="tensorrt-rtx",
    title="TensorRT for RTX",
    suffix=".engine",
    format="tensorrt-rtx",
    extra="tensorrt-rtx",
    packages=("tensorrt_rtx",),
    distributions=("tensorrt_rtx",),
    precisions=("fp32", "fp16", "bf16", "int8", "int4-weights", "mixed"),
    options={
        "sm": "GPU generations the engine is built for, as compute capabilities: sm=89,120 (the default)",
        **SHARED,
        "prove_reproducible": "true builds a second time in another process and fails where the bytes differ",
    },
    # What its parser takes: int8 on both sides, zero points of 0, a float bias. The residual of an Add with its own
    # Q/DQ keeps the sum in int8.
    scheme=QuantizationScheme(
        activation="int8",
        symmetric_activations=True,
        per_channel=True,
        quantize_bias=False,
        quantize_residual=True,
    ),
    converter="deploykit.converters.tensorrt_rtx.convert:convert_job",
    support="deploykit.converters.tensorrt_rtx.support:support_job",
    inspect="deploykit.converters.tensorrt_rtx.inspect:describe",
    worker="tensorrt-rtx",
    measured="tensorrt-rtx",
    custom_ops="a TensorRT plugin library with getCreators",
    alone=True,
    takes=("profiles", "sizes"),
    runs_on="deploykit.converters.tensorrt_rtx:why_not_here",
)
