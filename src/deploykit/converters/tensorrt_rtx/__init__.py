"""TensorRT for RTX: engines built ahead of time, without a GPU, for several GPU generations at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deploykit import lazy
from deploykit.converters.tensorrt.device import why_no_device
from deploykit.converters.tensorrt.loading import expect_same, gpus
from deploykit.converters.tensorrt.options import SHARED
from deploykit.target import QuantizationScheme, Target

if TYPE_CHECKING:
    from pathlib import Path


def why_not_here() -> str | None:
    """Why an engine is not executed on this machine: the driver or the GPU is missing. Building needs neither."""
    reason = why_no_device()
    return f"{reason}: engines are built here, not run" if reason else None


def refuse_foreign(path: Path) -> None:
    """Raises UnavailableError (DK591) for an engine of another version, or for other GPUs; nothing is deserialised."""
    expect_same(path, "tensorrt_rtx", "TensorRT-RTX", lazy.version_of("tensorrt_rtx"), gpus())


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
    runtime="deploykit.converters.tensorrt_rtx.runtime:load",
    magic=(b"vtrt",),
    refuses="deploykit.converters.tensorrt_rtx:refuse_foreign",
    support="deploykit.converters.tensorrt_rtx.support:support_job",
    inspect="deploykit.converters.tensorrt_rtx.inspect:describe",
    worker="tensorrt-rtx",
    measured="tensorrt-rtx",
    custom_ops="a TensorRT plugin library with getCreators",
    alone=True,
    takes=("profiles", "sizes"),
    runs_on="deploykit.converters.tensorrt_rtx:why_not_here",
)
