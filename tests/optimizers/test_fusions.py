"""What kind of transformer a graph is, told by its attention and nothing else."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from deploykit.optimizers.fusions import Transformer, transformer_of


def model(body: str, weights: str = "", inputs: str = "float[b,n,8] x") -> ir.Model:
    declared = f"<{weights}>" if weights else ""
    text = f'<ir_version: 8, opset_import: ["": 17]> agraph ({inputs}) => (float[b,m,n,k] y) {declared} {{ {body} }}'
    return ir.from_proto(onnx.parser.parse_model(text))


SPLIT = "int64[4] split = {0, 0, 2, 4}"
HEADS = (
    """h = Reshape(x, split) q = Transpose <perm=[0,2,1,3]> (h) k = Transpose <perm=[0,2,3,1]> (h) s = MatMul(q, k)"""
)


def test_attention_without_a_mask_is_an_encoder_s():
    found = transformer_of(model(f"{HEADS} p = Softmax(s) y = MatMul(p, q)", SPLIT))
    assert found == Transformer("bert", heads=2, width=8)


def test_a_triangular_mask_is_a_decoder_s():
    mask = "bool[3,3] mask = {1,0,0,1,1,0,1,1,1}, float low = {-1000}"
    body = f"{HEADS} m = Where(mask, s, low) p = Softmax(m) y = MatMul(p, q)"
    found = transformer_of(model(body, f"{SPLIT}, {mask}"))
    assert found is not None
    assert found.kind == "gpt2"


def test_patches_of_an_image_are_a_vision_transformer_s():
    patches = "c = Conv <kernel_shape=[4,4], strides=[4,4]> (i, w) x = Reshape(c, rows)"
    body = f"{patches} {HEADS} p = Softmax(s) y = MatMul(p, q)"
    found = transformer_of(model(body, f"{SPLIT}, float[8,3,4,4] w, int64[3] rows = {{0, -1, 8}}", "float[b,3,8,8] i"))
    assert found is not None
    assert found.kind == "vit"


@pytest.mark.parametrize(
    "body",
    [
        "y = Softmax(x)",
        f"{HEADS} y = Softmax(s)",
        "h = Relu(x) p = Softmax(h) y = MatMul(p, x)",
    ],
)
def test_a_softmax_alone_is_no_attention(body):
    assert transformer_of(model(body, SPLIT)) is None


def test_a_triangle_of_weights_is_no_mask():
    rng = np.random.default_rng(0)
    text = ", ".join(f"{value:.3f}" for value in rng.normal(size=16))
    body = (
        "a = MatMul(x, w) h = Reshape(a, split) q = Transpose <perm=[0,2,1,3]> (h) k = Transpose <perm=[0,2,3,1]> (h)"
    )
    found = transformer_of(
        model(
            f"{body} s = MatMul(q, k) p = Softmax(s) y = MatMul(p, q)",
            f"{SPLIT}, float[4,4] w = {{{text}}}",
            "float[b,n,4] x",
        )
    )
    assert found is not None
    assert found.kind == "bert"
