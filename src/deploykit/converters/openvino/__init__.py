"""OpenVINO: IR files (`.xml` with `.bin`) that its CPU, GPU and NPU plugins compile."""

from __future__ import annotations

from deploykit.converters.vnni import saturates
from deploykit.route import Route
from deploykit.target import QuantizationScheme, Target

_ANY_ROUTE = ("layout",)

TARGET = Target(
    name="openvino",
    title="OpenVINO",
    suffix=".xml",
    format="openvino",
    extra="openvino",
    packages=("openvino",),
    distributions=("openvino",),
    precisions=("fp32", "fp16", "int8", "int8-weights", "int4-weights", "mixed"),
    options={
        "weights": "fp16, int8, int8_sym, int4_sym or int4_asym: how weights are stored; activations stay float "
        "(integers by NNCF: pip install 'deploykit[nncf]')",
        "group_size": "weights that share a scale with int4: 128 where layers have it; -1 for one scale a channel",
        "ratio": "share of the weights that become int4, the others int8: 1 by default; 4-bit weights use --calib",
        "quantizer": "nncf: INT8 by NNCF on --calib, from a float model, instead of deploykit quantize",
        "preset": "performance (the default) or mixed, of quantizer=nncf: symmetric activations, or fitted ones",
        "model_type": "transformer: quantizer=nncf keeps what transformers need in float",
        "preprocess": "true: inputs with a preprocessing take uint8 pictures [N, height, width, 3], and the IR does it",
        "route": "auto (the default: through ONNX, whose nodes every report names), onnx, torch or tensorflow",
        "layout": "NHWC, or NAME:NHWC: inputs or outputs of rank 4 have their channels last in the IR",
    },
    # What its low-precision pass keeps in one kernel: uint8 activations with a fitted zero point (models with int8 ones
    # come out wrong in 2026.4.1: PP-OCR rec with 5 dB in place of 16, attacut with 11 in place of 34), int8 weights per
    # channel, a float bias. 7-bit weights where ONNX Runtime's scheme has them: without VNNI its x86 kernels saturate
    # pairs of products in int16 too.
    # Its integer convolutions fuse what follows them (Mul, Add, hard swish) and may write float, so Q/DQ stands where
    # integers are read, once: a second pair behind a pool or a Transpose is a Convert and a FakeQuantize. Products of
    # two computed factors take no zero points: with them attention runs in bfloat16 between conversions.
    # A Reduce that ends in a QuantizeLinear starts its maximum at the integer 0, and its minimum: what lies below the
    # zero point is lost (2026.4.1, CPU: 15 and 0 dB; no public issue, pull 18835 mended a neighbour). So Q/DQ goes
    # before it.
    scheme=QuantizationScheme(
        activation="uint8",
        symmetric_activations=False,
        per_channel=True,
        quantize_bias=False,
        quantize_residual=True,
        float_outputs=True,
        lifted_pairs=True,
        signed_products=True,
        reduce_range=saturates(),
    ),
    converter="deploykit.converters.openvino.convert:convert_job",
    support="deploykit.converters.openvino.support:support_job",
    runtime="deploykit.converters.openvino.runtime:load",
    inspect="deploykit.converters.openvino.inspect:describe",
    defaults="deploykit.converters.openvino.defaults:measure_job",
    worker="openvino",
    measured="openvino",
    takes=("calib", "contract"),
    routes={
        "torch": Route(
            title="OpenVINO, from PyTorch's own program",
            writer="deploykit.converters.openvino.torch_route:write",
            kinds=("python", "pt2", "torchscript"),
            options=_ANY_ROUTE,
            hides=("openvino_telemetry", "nncf", "tensorflow"),
            preferred=False,
        ),
        "tensorflow": Route(
            title="OpenVINO, from TensorFlow's own graph",
            writer="deploykit.converters.openvino.tensorflow_route:write",
            kinds=("savedmodel", "keras", "hdf5"),
            options=_ANY_ROUTE,
            hides=("openvino_telemetry", "nncf", "torch"),
            preferred=False,
        ),
    },
    custom_ops="an OpenVINO extension library",
    tables={"": "openvino-2026.4.1"},
)
