"""TensorRT-RTX engines on a GPU (runs in the worker)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deploykit.converters.tensorrt.runtime import opened
from deploykit.converters.tensorrt_rtx import refuse_foreign

if TYPE_CHECKING:
    from pathlib import Path

    from deploykit.runtime import Runtime, RuntimeOptions


def load(path: Path, options: RuntimeOptions) -> Runtime:
    """The engine, deserialised. Raises UnavailableError (DK591), VendorError (DK525); see the classic runtime."""
    return opened(path, options, "tensorrt_rtx", refuse_foreign)
