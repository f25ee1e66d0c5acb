"""MNN: models are checked against the operators that its converter registers for ONNX."""

from __future__ import annotations

from deploykit.target import QuantizationScheme, Target

TARGET = Target(
    name="mnn",
    title="MNN",
    suffix=".mnn",
    format="mnn",
    extra=None,
    packages=(),
    distributions=(),
    precisions=("fp32", "fp16"),
    scheme=QuantizationScheme(activation="int8", symmetric_activations=True, per_channel=True, quantize_bias=False),
    tables={"": "mnn"},
    elsewhere="pip install MNN, then: mnnconvert -f ONNX --modelFile MODEL --MNNModel OUT.mnn --bizCode MNN",
)
