"""ncnn: models are checked against the operators that pnnx reads from ONNX."""

from __future__ import annotations

from deploykit.target import QuantizationScheme, Target

TARGET = Target(
    name="ncnn",
    title="ncnn",
    suffix=".param",
    format="ncnn",
    extra=None,
    packages=(),
    distributions=(),
    precisions=("fp32", "fp16"),
    scheme=QuantizationScheme(activation="int8", symmetric_activations=True, per_channel=True, quantize_bias=False),
    tables={"": "ncnn"},
    elsewhere="pip install pnnx, then: pnnx MODEL",
)
