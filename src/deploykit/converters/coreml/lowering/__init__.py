"""ONNX -> MIL, one file an operator family. Importing this fills `REGISTRY`."""

from __future__ import annotations

from deploykit.converters.coreml.lowering import (
    activation,
    conv,
    elementwise,
    indexing,
    matmul,
    norm,
    pool,
    quantization,
    reduce,
    resize,
    shape,
)
from deploykit.converters.coreml.lowering.context import REGISTRY

__all__ = [
    "REGISTRY",
    "activation",
    "conv",
    "elementwise",
    "indexing",
    "matmul",
    "norm",
    "pool",
    "quantization",
    "reduce",
    "resize",
    "shape",
]
