"""Apache TVM: models are checked against what its Relax importer takes from ONNX."""

from __future__ import annotations

from deploykit.target import QuantizationScheme, Target

TARGET = Target(
    name="tvm",
    title="Apache TVM",
    suffix=".so",
    format="tvm",
    extra=None,
    packages=(),
    distributions=(),
    precisions=("fp32", "fp16"),
    scheme=QuantizationScheme(activation="int8", symmetric_activations=True, per_channel=True, quantize_bias=False),
    tables={"": "tvm"},
    elsewhere="in Python, with TVM installed: tvm.relax.frontend.onnx.from_onnx(onnx.load(MODEL))",
)
