"""onnxruntime's fused operators, compared with its own kernels."""

from __future__ import annotations

import pytest

from deploykit.optimizers.rewrites.microsoft import DecomposeMicrosoft


def model(body, inputs="float[N, 4, 6] x", outputs="float[N, 4, 6] y", opset=17):
    return f"""<ir_version: 8, opset_import: ["": {opset}, "com.microsoft": 1]>
    agraph ({inputs}) => ({outputs}) {{ {body} }}"""


@pytest.mark.parametrize("opset", [11, 17, 20])
@pytest.mark.parametrize(
    "call",
    [
        "Gelu (x)",
        "FastGelu (x)",
        "FastGelu (x, b)",
        "BiasGelu (x, b)",
        "QuickGelu (x)",
        "QuickGelu <alpha = 1.0> (x)",
    ],
)
def test_activation(call, opset, unchanged_values):
    text = model(f"y = com.microsoft.{call}", "float[N, 4, 6] x, float[6] b", opset=opset)
    unchanged_values(DecomposeMicrosoft(), text, {"N": 2}, {"N": 1}, tolerance=2e-5)


@pytest.mark.parametrize("arguments", ["x, z, s", "x, z, s, b", "x, z, s, b, b"])
@pytest.mark.parametrize("opset", [13, 18])
def test_skip_layer_normalization(arguments, opset, unchanged_values):
    text = model(
        f"y, m, d, t = com.microsoft.SkipLayerNormalization <epsilon = 0.001> ({arguments})",
        "float[N, 4, 6] x, float[N, 4, 6] z, float[6] s, float[6] b",
        "float[N, 4, 6] y, float[N, 4, 6] t",
        opset,
    )
    unchanged_values(DecomposeMicrosoft(), text, {"N": 2})


@pytest.mark.parametrize("arguments", ["x, z, s", "x, z, s, b"])
def test_skip_rms_normalization(arguments, unchanged_values):
    text = model(
        f"y, , , t = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 0.001> ({arguments})",
        "float[N, 4, 6] x, float[N, 4, 6] z, float[6] s, float[6] b",
        "float[N, 4, 6] y, float[N, 4, 6] t",
    )
    unchanged_values(DecomposeMicrosoft(), text, {"N": 2})


@pytest.mark.parametrize(
    ("attributes", "a", "b"),
    [
        ("", "N, 4, 3", "N, 3, 6"),
        ("<transA = 1, alpha = 0.5>", "N, 3, 4", "N, 3, 6"),
        ("<transB = 1>", "N, 4, 3", "N, 6, 3"),
        ("<transA = 1, transB = 1>", "N, 3, 4", "6, 3"),
    ],
)
def test_fused_matmul(attributes, a, b, unchanged_values):
    text = model(f"y = com.microsoft.FusedMatMul {attributes} (a, b)", f"float[{a}] a, float[{b}] b")
    unchanged_values(DecomposeMicrosoft(), text, {"N": 2})


@pytest.mark.parametrize(
    "more", ['activation = "Relu"', 'activation = "LeakyRelu", activation_params = [0.3]',
             'activation = "Clip", activation_params = [-0.5, 0.5]', 'activation = "Tanh", pads = [1, 1, 1, 1]']
)  # fmt: skip
def test_fused_conv(more, unchanged_values):
    text = model(
        f"y = com.microsoft.FusedConv <{more}> (x, w, b)",
        "float[N, 2, 5, 5] x, float[3, 2, 3, 3] w, float[3] b",
        "float[N, 3, H, W] y".replace("H, W", "5, 5" if "pads" in more else "3, 3"),
    )
    unchanged_values(DecomposeMicrosoft(), text, {"N": 2})


def test_batches_that_are_transposed_are_declined(never_applies):
    body = "y = com.microsoft.FusedMatMul <transBatchA = 1> (a, b)"
    never_applies(DecomposeMicrosoft(), model(body, "float[4, N, 3] a, float[N, 3, 6] b"))
