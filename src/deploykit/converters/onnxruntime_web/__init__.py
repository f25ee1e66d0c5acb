"""ONNX Runtime Web: the ONNX file itself in a browser; models are checked against its backends' operator tables."""

from __future__ import annotations

from deploykit.target import QuantizationScheme, Target

TARGET = Target(
    name="onnxruntime-web",
    title="ONNX Runtime Web",
    suffix=".onnx",
    format="onnx",
    extra=None,
    packages=(),
    distributions=(),
    precisions=("fp32", "fp16", "int8", "int8-dynamic", "int8-weights", "int4-weights", "mixed"),
    versions=("wasm", "webgpu", "webnn", "webgl"),
    # Its wasm backend has ONNX Runtime's own CPU kernels; relaxed SIMD adds pairs of u8*s8 products like x86 does.
    scheme=QuantizationScheme(
        activation="uint8",
        symmetric_activations=False,
        per_channel=True,
        quantize_bias=True,
        quantize_residual=True,
        reduce_range=True,
    ),
    tables={
        "wasm": "ort-web-wasm",
        "webgpu": "ort-web-webgpu",
        "webnn": "ort-web-webnn",
        "webgl": "ort-web-webgl",
    },
    elsewhere="the page loads the ONNX file itself: await ort.InferenceSession.create('model.onnx')",
)
