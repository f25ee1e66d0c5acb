"""ncnn: `.param` with `.bin` by pnnx, run by ncnn's Python module on the CPU."""

from __future__ import annotations

from deploykit.target import QuantizationScheme, Target

TARGET = Target(
    name="ncnn",
    title="ncnn",
    suffix=".param",
    format="ncnn",
    extra="ncnn",
    packages=("ncnn", "pnnx"),
    distributions=("ncnn", "pnnx"),
    # No int8: the program that calibrates (ncnn2table) comes with no package, and pnnx reads no QuantizeLinear.
    precisions=("fp32", "fp16"),
    options={"weights": "how weights are stored: float32 or fp16; ncnn computes in what it is told when it loads them"},
    scheme=QuantizationScheme(activation="int8", symmetric_activations=True, per_channel=True, quantize_bias=False),
    converter="deploykit.converters.ncnn.convert:convert_job",
    support="deploykit.converters.ncnn.support:support_job",
    runtime="deploykit.converters.ncnn.runtime:load",
    inspect="deploykit.converters.ncnn.inspect:describe",
    worker="ncnn",
    tables={"": "ncnn"},
    makes={"fp16": {"weights": "fp16"}},
)
