"""LiteRT: `.tflite` files, run by LiteRT's own interpreter."""

from __future__ import annotations

from deploykit.target import QuantizationScheme, Target

TARGET = Target(
    name="litert",
    title="LiteRT",
    suffix=".tflite",
    format="litert",
    extra="litert",
    packages=("ai_edge_litert", "ai_edge_quantizer"),
    distributions=("ai-edge-litert", "ai-edge-quantizer"),
    precisions=("fp32", "fp16", "int8", "mixed"),
    # The LiteRT quantization specification: int8 activations with a fitted zero point, int8 weights per channel with
    # zero point 0, int32 bias.
    scheme=QuantizationScheme(
        activation="int8",
        symmetric_activations=False,
        per_channel=True,
        quantize_bias=True,
        quantize_residual=True,
    ),
    runtime="deploykit.converters.litert.runtime:load",
    inspect="deploykit.converters.litert.inspect:describe",
    worker="litert",
    tables={"": "litert-onnx2tf"},
    elsewhere="pip install onnx2tf, then: onnx2tf -i MODEL -o FOLDER",
)
