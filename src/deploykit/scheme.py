"""How INT8 is to look in an ONNX model."""

from __future__ import annotations

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, slots=True)
class QuantizationScheme:
    """How INT8 is to look in the ONNX so that the target fuses it.

    activation: integer type of activations. symmetric_activations: zero point 0 (int8) instead of a fitted one.
    per_channel: a scale for each output channel of a weight. reduce_range: weights of 7 bits in the layers where pairs
    of products would saturate at 16 bits, as on CPUs without VNNI.
    quantize_bias: int32 bias as Q/DQ; False leaves it float, which TensorRT and Core ML want.
    quantize_residual: both inputs of an Add get their own Q/DQ.
    float_outputs: integer convolutions may write float, so that their outputs get Q/DQ only for readers in integers.
    lifted_pairs: Q/DQ before nodes that only move values or choose among them, and none behind.
    integer_sums: sums of residuals end in Q/DQ too; MatMul and Add are one Gemm with an int32 bias, and hard swish is
    written in two nodes.
    signed_products: factors of a matrix product that are both computed are int8 with zero point 0, unless none is
    negative; so is what only matrix products read the extreme values of.
    operators: op types whose inputs are quantized; others stay float.
    """

    activation: Literal["int8", "uint8"] = "int8"
    symmetric_activations: bool = True
    per_channel: bool = True
    quantize_bias: bool = False
    quantize_residual: bool = False
    float_outputs: bool = False
    lifted_pairs: bool = False
    integer_sums: bool = False
    signed_products: bool = False
    reduce_range: bool = False
    operators: tuple[str, ...] = ("Conv", "ConvTranspose", "MatMul", "Gemm")


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Another place where a runtime can run an artifact: a browser, say.

    name: of the comparison there. provider: what the runtime knows it by. samples: at most so many are compared.
    refused: how a failure there begins where it is no failure of the conversion; "" where it is one.
    """

    name: str
    provider: str
    samples: int
    refused: str = ""
