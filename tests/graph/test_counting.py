"""MACs against values worked out by hand."""

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from deploykit import graph


def counted(text, dims=None, weights=(), opset=17):
    head = f'<ir_version: 10, opset_import: ["" : {opset}, "own" : 1, "com.microsoft" : 1]>\n'
    model = onnx.parser.parse_model(head + text)
    for name, shape, dtype in weights:
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(shape, dtype), name))
    before = model.SerializeToString()
    loaded = ir.from_proto(model)
    counts = graph.macs(loaded, dims)
    assert ir.to_proto(loaded).SerializeToString() == ir.to_proto(ir.from_proto(model)).SerializeToString()
    assert model.SerializeToString() == before
    return counts


def f32(name, *shape):
    return (name, shape, np.float32)


@pytest.mark.parametrize(
    ("text", "weights", "expected"),
    [
        # 8 filters over 3 channels of 3x3, stride 2, pad 1: 16x16 outputs
        (
            "g (float[2,3,32,32] x) => (float[a,b,c,d] y) { [n] y = Conv <strides=[2,2], pads=[1,1,1,1]> (x, w) }",
            [f32("w", 8, 3, 3, 3)],
            2 * 8 * 16 * 16 * 3 * 3 * 3,
        ),
        # depthwise: one 5x5 filter for each of 6 channels, no padding: 6x4 outputs
        (
            "g (float[1,6,10,8] x) => (float[a,b,c,d] y) { [n] y = Conv <group=6> (x, w) }",
            [f32("w", 6, 1, 5, 5)],
            6 * 6 * 4 * 25,
        ),
        # two groups, dilation 2 (3 taps reach over 5), one axis: 16 outputs
        (
            "g (float[1,4,20] x) => (float[a,b,c] y) { [n] y = Conv <group=2, dilations=[2]> (x, w, v) }",
            [f32("w", 6, 2, 3), f32("v", 6)],
            6 * 16 * 2 * 3,
        ),
        # every one of 2*4*5*5 inputs meets 3 * 3x3 weights, whatever the stride
        (
            "g (float[2,4,5,5] x) => (float[a,b,c,d] y) { [n] y = ConvTranspose <strides=[2,2]> (x, w) }",
            [f32("w", 4, 3, 3, 3)],
            2 * 4 * 25 * 3 * 9,
        ),
        ("g (float[5,7] x) => (float[a,b] y) { [n] y = Gemm <transB=1> (x, w) }", [f32("w", 11, 7)], 5 * 7 * 11),
        ("g (float[7,5] x) => (float[a,b] y) { [n] y = Gemm <transA=1> (x, w) }", [f32("w", 7, 11)], 5 * 7 * 11),
        (
            "g (float[2,1,3,4] x, float[6,4,5] w) => (float[a,b,c,d] y) { [n] y = MatMul(x, w) }",
            [],
            2 * 6 * 3 * 4 * 5,
        ),
        ("g (float[3,4] x, float[4] w) => (float[a] y) { [n] y = MatMul(x, w) }", [], 3 * 4),
        # 4 gates, hidden 6, input 5, both directions, 7 steps, batch 2
        (
            """g (float[7,2,5] x) => (float[a,b,c,d] y) {
                [n] y = LSTM <hidden_size=6, direction="bidirectional"> (x, w, r)
            }""",
            [f32("w", 2, 24, 5), f32("r", 2, 24, 6)],
            7 * 2 * 2 * 4 * 6 * (5 + 6),
        ),
        # the same with matrices [directions, inputs, gates]
        (
            """g (float[7,2,5] x) => (float[a,b,c,d] y) <float s = {1}, int8 z = {0}> {
                [n] y = com.microsoft.DynamicQuantizeLSTM <hidden_size=6> (x, w, r, , , , , , s, z, s, z)
            }""",
            [("w", (1, 5, 24), np.int8), ("r", (1, 6, 24), np.int8)],
            7 * 2 * 4 * 6 * (5 + 6),
        ),
        (
            "g (float[7,2,5] x) => (float[a,b,c,d] y) { [n] y = GRU <hidden_size=6> (x, w, r) }",
            [f32("w", 1, 18, 5), f32("r", 1, 18, 6)],
            7 * 2 * 3 * 6 * (5 + 6),
        ),
        (
            "g (uint8[5,7] x) => (int32[a,b] y) { [n] y = MatMulInteger(x, w) }",
            [("w", (7, 11), np.uint8)],
            5 * 7 * 11,
        ),
        (
            """g (uint8[1,2,6,6] x) => (uint8[a,b,c,d] y) <float s = {1}, uint8 z = {0}> {
                [n] y = QLinearConv(x, s, z, w, s, z, s, z)
            }""",
            [("w", (4, 2, 3, 3), np.uint8)],
            4 * 4 * 4 * 2 * 9,
        ),
        (
            """g (float[2,3,4] x, float[2,5,4] w) => (float[a,b,c] y) {
                [n] y = Einsum <equation="bij,bkj->bik"> (x, w)
            }""",
            [],
            2 * 3 * 4 * 5,
        ),
        ("g (float[5,7] x) => (float[5,7] y) { [n] y = Relu(x) }", [], None),
    ],
)
def test_operators(text, weights, expected):
    assert counted(text, weights=weights) == ({} if expected is None else {"n": expected})


def test_attention():
    text = """g (float[2,3,5,8] q, float[2,3,7,8] k, float[2,3,7,4] v) => (float[a,b,c,d] y) {
        [n] y = Attention(q, k, v)
    }"""
    assert counted(text, opset=23) == {"n": 2 * 3 * 5 * 7 * (8 + 4)}


def test_symbolic_dimensions_are_one_unless_given():
    text = """g (float[batch,seq,4] x) => (float[batch,seq,8] y) { [n] y = MatMul(x, w) }"""
    weights = [f32("w", 4, 8)]
    assert counted(text, weights=weights) == {"n": 32}
    assert counted(text, {"batch": 3, "seq": 5}, weights) == {"n": 3 * 5 * 32}


def test_sizes_follow_through_computed_shapes():
    text = """g (float[batch,3,4] x) => (float[a,b] y) <int64[2] to = {-1, 12}> {
        r = Reshape(x, to)
        [n] y = MatMul(r, w)
    }"""
    assert counted(text, {"batch": 9}, [f32("w", 12, 5)]) == {"n": 9 * 12 * 5}


def test_a_dimension_of_zero_costs_nothing():
    text = "g (float[1,0,4] x) => (float[a,b,c] y) { [n] y = MatMul(x, w) }"
    assert counted(text, weights=[f32("w", 4, 8)]) == {}


def test_branches_count_once_each():
    text = """g (float[2,4] x, bool c) => (float[2,4] y) {
        y = If (c) <then_branch = t () => (float[2,4] p) { [a] p = MatMul(x, w) },
                    else_branch = e () => (float[2,4] q) { [b] h = MatMul(x, w)  [c] q = MatMul(h, w) }>
    }"""
    assert counted(text, weights=[f32("w", 4, 4)]) == {"a": 32, "b": 32, "c": 32}


def test_loop_bodies_count_once():
    text = """g (float[2,4] x, int64 n, bool c) => (float[2,4] y) {
        y = Loop (n, c, x) <body = body (int64 i, bool k, float[2,4] s) => (bool k2, float[2,4] t) {
            k2 = Identity(k)
            [m] t = MatMul(s, w)
        }>
    }"""
    assert counted(text, weights=[f32("w", 4, 4)]) == {"m": 32}


def test_functions_count_once_for_each_call():
    text = """g (float[2,4] x) => (float[2,4] y) { h = own.f(x, w)  y = own.f(h, w) }
    <domain: "own", opset_import: ["" : 17]> f (a, m) => (b) { [inner] b = MatMul(a, m) }"""
    assert counted(text, weights=[f32("w", 4, 4)]) == {"inner": 64}


def test_unnamed_nodes_get_the_names_of_name_nodes():
    text = "g (float[2,4] x) => (float[2,4] y) { h = MatMul(x, w)  y = MatMul(h, w) }"
    assert counted(text, weights=[f32("w", 4, 4)]) == {"MatMul_1": 32, "MatMul_2": 32}


def test_behind_an_unknown_operator_weights_count_once():
    text = "g (float[2,4] x) => (float[a,b] y) { h = own.Mystery(x)  [n] y = MatMul(h, w) }"
    assert counted(text, weights=[f32("w", 4, 8)]) == {"n": 32}
