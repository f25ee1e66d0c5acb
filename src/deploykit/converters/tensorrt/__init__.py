"""TensorRT: models are checked against the operator tables of its ONNX parser; engines are built where the GPU is."""

from __future__ import annotations

from deploykit.target import QuantizationScheme, Target

TARGET = Target(
    name="tensorrt",
    title="TensorRT",
    suffix=".engine",
    format="tensorrt",
    extra=None,
    packages=(),
    distributions=(),
    precisions=("fp32", "fp16", "bf16", "int8", "int4-weights", "mixed"),
    versions=("11.1", "10.16", "10.1", "8.6", "8.5"),
    # As TensorRT for RTX: int8 on both sides, zero points of 0, a float bias, the residual of an Add with its own Q/DQ.
    scheme=QuantizationScheme(
        activation="int8",
        symmetric_activations=True,
        per_channel=True,
        quantize_bias=False,
        quantize_residual=True,
    ),
    tables={
        "11.1": "tensorrt-11.1",
        "10.16": "tensorrt-10.16",
        "10.1": "tensorrt-10.1",
        "8.6": "tensorrt-8.6",
        "8.5": "tensorrt-8.5",
    },
    numbered=True,
    elsewhere="on the machine with the GPU: trtexec --onnx=MODEL --saveEngine=OUT.engine",
)
