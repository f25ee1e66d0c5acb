"""ONNX Runtime: runs ONNX as it is; converting proves that the installed engine loads it, and can optimise ahead."""

from __future__ import annotations

from deploykit.converters.vnni import saturates
from deploykit.target import QuantizationScheme, Target

TARGET = Target(
    name="onnxruntime",
    title="ONNX Runtime",
    suffix=".onnx",
    format="onnx",
    extra=None,
    packages=("onnxruntime",),
    distributions=("onnxruntime",),
    precisions=("fp32", "fp16", "int8", "int8-dynamic", "int8-weights", "int4-weights", "mixed"),
    versions=("cpu", "cuda", "dml", "qnn", "coreml", "nnapi"),
    options={
        "optimization": "how far the graph is optimised ahead of time: none (the default, portable), basic, extended "
        "(writes com.microsoft operators), or all (the default of format=ort)",
        "provider": "the execution provider that the graph is optimised for and has to take it, NAME[:KEY=VALUE,...]",
        "format": "onnx (the default), or ort: ONNX Runtime's own, with the list of operators for a minimal build",
        "types": "true: the list for a minimal build has the types of each operator, too (format=ort)",
    },
    formats={"ort": ".ort"},
    # What its CPU kernels fuse: uint8 activations with a fitted zero point (int8 ones are turned into uint8 on x86, and
    # a symmetric range leaves the Relu outside the kernel), int8 weights per channel, int32 bias. 7-bit weights where
    # CPUs without VNNI would saturate (microsoft/onnxruntime #6004, #14642), and this one has none.
    scheme=QuantizationScheme(
        activation="uint8",
        symmetric_activations=False,
        per_channel=True,
        quantize_bias=True,
        quantize_residual=True,
        integer_sums=True,
        reduce_range=saturates(),
    ),
    converter="deploykit.converters.onnxruntime.convert:convert_job",
    support="deploykit.converters.onnxruntime.support:support_job",
    runtime="deploykit.converters.onnxruntime.runtime:load",
    inspect="deploykit.converters.onnxruntime.inspect:describe",
    worker="onnxruntime",
    measured="onnxruntime",
    custom_ops="a library with ONNX Runtime's RegisterCustomOps",
    tables={
        "cpu": "ort-cpu-1.32.0",
        "cuda": "ort-cuda",
        "dml": "ort-dml",
        "qnn": "qnn",
        "coreml": "coreml-ep-mlprogram",
        "nnapi": "nnapi",
    },
    # Their providers are in other packages than the one that is installed with deploykit.
    check_only=("cuda", "dml", "qnn", "coreml", "nnapi"),
    elsewhere="the file is the same for every provider: deploykit convert MODEL --to onnxruntime -o OUT.onnx",
)
