"""ONNX -> MIL, one file an operator family. Importing this fills `REGISTRY`."""

from __future__ import annotations

from deploykit.converters.coreml.lowering import (
    activation,
    body,
    contrib,
    control,
    conv,
    einsum,
    elementwise,
    grid,
    indexing,
    matmul,
    norm,
    padding,
    pool,
    quantization,
    recurrent,
    reduce,
    resize,
    scatter,
    sequence,
    shape,
    suppression,
)
from deploykit.converters.coreml.lowering.context import REGISTRY

__all__ = [
    "REGISTRY",
    "activation",
    "body",
    "contrib",
    "control",
    "conv",
    "einsum",
    "elementwise",
    "grid",
    "indexing",
    "matmul",
    "norm",
    "padding",
    "pool",
    "quantization",
    "recurrent",
    "reduce",
    "resize",
    "scatter",
    "sequence",
    "shape",
    "suppression",
]
