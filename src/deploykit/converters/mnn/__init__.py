"""MNN: `.mnn` files by its own converter, run by its Python module on the CPU."""

from __future__ import annotations

from deploykit.target import QuantizationScheme, Target

TARGET = Target(
    name="mnn",
    title="MNN",
    suffix=".mnn",
    format="mnn",
    extra="mnn",
    packages=("MNN",),
    distributions=("MNN",),
    # No int8: of QuantizeLinear its converter (3.6.1) crashes without a zero point, and loses outputs with one.
    precisions=("fp32", "fp16", "int8-weights", "int4-weights"),
    options={
        "weights": "how weights are stored: float32, fp16, int8 or int4; computed in float32 all the same",
        "block": "inputs that share a scale of int8 and int4 weights, as 32; otherwise a whole output channel does",
        "hqq": "true: int8 and int4 weights by half-quadratic quantization, slower to convert and closer",
    },
    scheme=QuantizationScheme(activation="int8", symmetric_activations=True, per_channel=True, quantize_bias=False),
    converter="deploykit.converters.mnn.convert:convert_job",
    runtime="deploykit.converters.mnn.runtime:load",
    inspect="deploykit.converters.mnn.inspect:describe",
    worker="mnn",
    tables={"": "mnn"},
    makes={
        "fp16": {"weights": "fp16"},
        "int8-weights": {"weights": "int8"},
        "int4-weights": {"weights": "int4", "block": "32"},
    },
)
