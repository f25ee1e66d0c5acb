"""Apache TVM: a shared library of machine code by its Relax compiler and LLVM, run by its virtual machine here."""

from __future__ import annotations

from deploykit.target import QuantizationScheme, Target

TARGET = Target(
    name="tvm",
    title="Apache TVM",
    suffix=".so",
    format="tvm",
    extra="tvm",
    packages=("tvm",),
    distributions=("apache-tvm",),
    precisions=("fp32", "fp16", "int8", "int8-weights"),
    options={
        "target": "what LLVM compiles for, as `llvm -mcpu=x86-64-v3`, or `host`; any processor of this kind otherwise",
        "fuse": "false: every operator is a function of its own, which --per-op and --locate see; true otherwise",
    },
    scheme=QuantizationScheme(activation="int8", symmetric_activations=True, per_channel=True, quantize_bias=False),
    converter="deploykit.converters.tvm.convert:convert_job",
    runtime="deploykit.converters.tvm.runtime:load",
    inspect="deploykit.converters.tvm.inspect:describe",
    worker="tvm",
    refuses="deploykit.converters.tvm.trust:refuse_unknown",
    tables={"": "tvm"},
)
