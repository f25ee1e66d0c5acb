"""LiteRT: `.tflite` files from ONNX, PyTorch, TensorFlow and float LiteRT files, run by LiteRT's own interpreter."""

from __future__ import annotations

from deploykit.route import Route
from deploykit.target import QuantizationScheme, Target

_ANY_ROUTE = ("precision", "io", "ranges", "rounding", "micro")

TARGET = Target(
    name="litert",
    title="LiteRT",
    suffix=".tflite",
    format="litert",
    extra="litert",
    packages=("ai_edge_litert", "ai_edge_quantizer"),
    distributions=("ai-edge-litert", "ai-edge-quantizer"),
    # Integers are made of the float model by `precision`; of Q/DQ in an ONNX onnx2tf makes float arithmetic (DK569).
    precisions=("fp32", "fp16", "int8", "int8-dynamic", "int8-weights", "int4-weights"),
    options={
        "precision": "fp16, int8 (measured on --calib), int8-dynamic, int8-weights or int4-weights, of the float model",
        "io": "float (the default) or int8: inputs and outputs of precision=int8",
        "ranges": "minmax (the default) or moving-average: how ranges of precision=int8 follow from --calib",
        "rounding": "minmax, mse, octav (the default for int4), or gptq on --calib (fully connected layers only): how "
        "weights become integers",
        "micro": "true: OUT.cc and OUT.h with the bytes, and the operators and arena of TensorFlow Lite Micro",
        "route": "auto (the default), onnx, torch or tensorflow: the way from a PyTorch or TensorFlow source",
    },
    # The LiteRT quantization specification: int8 activations with a fitted zero point, int8 weights per channel with
    # zero point 0, int32 bias.
    scheme=QuantizationScheme(
        activation="int8",
        symmetric_activations=False,
        per_channel=True,
        quantize_bias=True,
        quantize_residual=True,
    ),
    converter="deploykit.converters.litert.convert:convert_job",
    runtime="deploykit.converters.litert.runtime:load",
    inspect="deploykit.converters.litert.inspect:describe",
    worker="litert",
    environment="onnx2tf",
    tables={"": "litert-onnx2tf"},
    takes=("calib",),
    makes={
        "fp16": {"precision": "fp16"},
        "int8": {"precision": "int8"},
        "int8-dynamic": {"precision": "int8-dynamic"},
        "int8-weights": {"precision": "int8-weights"},
        "int4-weights": {"precision": "int4-weights"},
    },
    routes={
        "torch": Route(
            title="litert-torch, from torch.export",
            writer="deploykit.converters.litert.torch_route:write",
            kinds=("python", "pt2"),
            options=_ANY_ROUTE,
            takes=("calib",),
        ),
        "tensorflow": Route(
            title="TensorFlow's own converter",
            writer="deploykit.converters.litert.tensorflow_route:write",
            kinds=("savedmodel", "keras", "hdf5", "tflite"),
            options=_ANY_ROUTE,
            takes=("calib",),
        ),
    },
)
