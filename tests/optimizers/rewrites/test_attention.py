"""onnxruntime's attention written out, compared with its own kernels."""

from __future__ import annotations

import pytest

from deploykit.optimizers.rewrites.attention import DecomposeAttention


def model(call, inputs, opset=17, out="N, S, 8"):
    return f"""<ir_version: 8, opset_import: ["": {opset}, "com.microsoft": 1]>
    agraph ({inputs}) => (float[{out}] y) {{ y = com.microsoft.{call} }}"""


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize(
    "call",
    [
        "MultiHeadAttention <num_heads = 2> (q, k, v)",
        "MultiHeadAttention <num_heads = 4, scale = 0.25> (q, k, v, b)",
        "MultiHeadAttention <num_heads = 2> (q, k, v, , , a)",
    ],
)
def test_multi_head_attention(call, opset, unchanged_values):
    inputs = "float[N, S, 8] q, float[N, T, 8] k, float[N, T, 8] v, float[24] b, float[1, 2, S, T] a"
    text = model(call, inputs, opset)
    ops = unchanged_values(DecomposeAttention(), text, {"N": 2, "S": 3, "T": 5}, {"N": 1, "S": 4, "T": 4})
    assert "Softmax" in ops


@pytest.mark.parametrize(
    "call", ["Attention <num_heads = 2> (x, w, b)", "Attention <num_heads = 4, scale = 0.5> (x, w, b)"]
)
def test_attention(call, unchanged_values):
    text = model(call, "float[N, S, 6] x, float[6, 24] w, float[24] b")
    unchanged_values(DecomposeAttention(), text, {"N": 2, "S": 3}, {"N": 1, "S": 5})


def test_masks_and_directions_are_declined(never_applies):
    inputs = "float[N, S, 6] x, float[6, 24] w, float[24] b, int32[N] m"
    never_applies(DecomposeAttention(), model("Attention <num_heads = 2> (x, w, b, m)", inputs))
    never_applies(DecomposeAttention(), model("Attention <num_heads = 2, unidirectional = 1> (x, w, b)", inputs))
