"""ONNX -> MIL, one file an operator family. Importing this fills `REGISTRY`."""

from __future__ import annotations

from deploykit.converters.coreml.lowering import (
    activation,
    body,
    control,
    conv,
    elementwise,
    grid,
    indexing,
    matmul,
    norm,
    pool,
    quantization,
    recurrent,
    reduce,
    resize,
    scatter,
    sequence,
    shape,
)
from deploykit.converters.coreml.lowering.context import REGISTRY

__all__ = [
    "REGISTRY",
    "activation",
    "body",
    "control",
    "conv",
    "elementwise",
    "grid",
    "indexing",
    "matmul",
    "norm",
    "pool",
    "quantization",
    "recurrent",
    "reduce",
    "resize",
    "scatter",
    "sequence",
    "shape",
]
