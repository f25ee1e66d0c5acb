"""An interpreter for ML Programs: Apple's documented semantics in numpy. Its results are simulated."""

from __future__ import annotations

from deploykit.converters.coreml.simulator import (
    classify,
    conv,
    elementwise,
    indexing,
    linear,
    norm,
    quantization,
    recurrent,
    reduce,
    resize,
    shape,
    vendor_blocks,
    vendor_compressed,
)
from deploykit.converters.coreml.simulator.interpreter import Interpreter, lacking
from deploykit.converters.coreml.simulator.table import EVALUATORS

__all__ = [
    "EVALUATORS",
    "Interpreter",
    "classify",
    "conv",
    "elementwise",
    "indexing",
    "lacking",
    "linear",
    "norm",
    "quantization",
    "recurrent",
    "reduce",
    "resize",
    "shape",
    "vendor_blocks",
    "vendor_compressed",
]
