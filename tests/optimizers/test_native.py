"""The native simplifier as a whole: what it leaves of a graph, where it stops, and that it keeps the values."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from deploykit import graph
from deploykit.optimizers.native import simplify_natively

HEADER = '<ir_version: {ir}, opset_import: ["": {opset}]>\n'
RNG = np.random.default_rng(0)


def run(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def simplified(text: str, *feeds: dict[str, np.ndarray], opset: int = 17, ir_version: int = 9) -> list[str]:
    """Operators that compute after simplifying; the outputs are those of the original on every set of feeds."""
    before = onnx.parser.parse_model(HEADER.format(ir=ir_version, opset=opset) + text)
    onnx.checker.check_model(before)
    model = simplify_natively(ir.from_proto(before), before.ByteSize())
    after = ir.to_proto(model)
    onnx.checker.check_model(after, full_check=True)
    assert [i.SerializeToString() for i in after.graph.input] == [i.SerializeToString() for i in before.graph.input]
    assert [o.name for o in after.graph.output] == [o.name for o in before.graph.output]
    for given in feeds:
        for old, new in zip(run(before, given), run(after, given), strict=True):
            assert new.dtype == old.dtype
            np.testing.assert_allclose(new, old, rtol=1e-4, atol=1e-5)
    return [node.op_type for node in graph.all_nodes(model) if node.op_type != "Constant"]


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def test_a_shape_with_one_unknown_size_is_a_constant():
    text = """agraph (float[batch,3,4] x) => (float[batch,k] y)
        <int64 zero = {0}, int64[1] ax = {0}, int64[1] rest = {12}>
        { s = Shape(x) b = Gather(s, zero) u = Unsqueeze(b, ax) t = Concat <axis = 0> (u, rest) y = Reshape(x, t) }"""
    assert simplified(text, {"x": floats(1, 3, 4)}, {"x": floats(5, 3, 4)}) == ["Reshape"]


def test_two_unknown_sizes_that_stay_in_place_are_copied():
    text = """agraph (float[batch,length,8] x) => (float[batch,length,2,4] y)
        <int64 zero = {0}, int64 one = {1}, int64[1] ax = {0}, int64[2] heads = {2, 4}>
        { s = Shape(x) b = Gather(s, zero) l = Gather(s, one) ub = Unsqueeze(b, ax) ul = Unsqueeze(l, ax)
          t = Concat <axis = 0> (ub, ul, heads) y = Reshape(x, t) }"""
    assert simplified(text, {"x": floats(1, 3, 8)}, {"x": floats(2, 5, 8)}) == ["Reshape"]


def test_sizes_that_move_are_computed_as_before():
    text = """agraph (float[batch,length,8] x) => (float[l,b,2,4] y)
        <int64 zero = {0}, int64 one = {1}, int64[1] ax = {0}, int64[2] heads = {2, 4}>
        { s = Shape(x) b = Gather(s, zero) l = Gather(s, one) ub = Unsqueeze(b, ax) ul = Unsqueeze(l, ax)
          t = Concat <axis = 0> (ul, ub, heads) y = Reshape(x, t) }"""
    assert "Concat" in simplified(text, {"x": floats(2, 3, 8)})


def test_one_name_at_two_inputs_is_not_trusted_to_be_one_size():
    text = """agraph (float[n,4] x, float[n,4] z) => (float[k,4] y, float[n,4] w)
        { s = Shape(z) e = Expand(x, s) y = Relu(e) w = Relu(z) }"""
    assert "Expand" in simplified(text, {"x": floats(1, 4), "z": floats(3, 4)})


def test_a_branch_that_always_runs_takes_the_place_of_its_if():
    text = """agraph (float[2,3] x) => (float[2,3] y) <bool c = {1}>
        { y = If (c) <
            then_branch = one () => (float[2,3] a) { k = Constant <value = float[1] {2}> () p = Mul(x, k) a = Relu(p) },
            else_branch = two () => (float[2,3] b) { b = Neg(x) }> }"""
    assert simplified(text, {"x": floats(2, 3)}) == ["Mul", "Relu"]


def test_a_branch_that_hands_an_outer_value_on_is_inlined_too():
    text = """agraph (float[2,3] x) => (float[2,3] y, float[2,3] z) <bool c = {0}>
        { r = Relu(x)
          y, z = If (c) <
            then_branch = one () => (float[2,3] a, float[2,3] a2) { a = Neg(x) a2 = Abs(x) },
            else_branch = two () => (float[2,3] b, float[2,3] b2) { b = Identity(r) b2 = Identity(r) }> }"""
    assert simplified(text, {"x": floats(2, 3)}) == ["Relu", "Identity"]


def test_an_if_that_depends_on_an_input_stays_and_its_branches_are_simplified():
    text = """agraph (float[2,3] x, bool c) => (float[2,3] y)
        { y = If (c) <
            then_branch = one () => (float[2,3] a) { p = Identity(x) q = Identity(p) a = Relu(q) },
            else_branch = two () => (float[2,3] b) { b = Neg(x) }> }"""
    feeds = [{"x": floats(2, 3), "c": np.array(value)} for value in (True, False)]
    assert simplified(text, *feeds) == ["If", "Relu", "Neg"]


def test_the_body_of_a_loop_keeps_what_depends_on_its_round():
    text = """agraph (float[1,3] x) => (float[k,3] y) <int64 three = {3}, bool yes = {1}>
        { y = Loop (three, yes, x) <
            body = b (int64 i, bool go, float[n,3] v) => (bool on, float[m,3] w)
              { on = Identity(go) s = Shape(v) e = Reshape(v, s) w = Concat <axis = 0> (e, e) }> }"""
    assert "Loop" in simplified(text, {"x": floats(1, 3)})


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("a = Mul(x, one) y = Relu(a)", ["Relu"]),
        ("a = Add(zero, x) y = Relu(a)", ["Relu"]),
        ("a = Div(x, one) b = Sub(a, zero) y = Relu(b)", ["Relu"]),
        ("a = Pow(x, one) y = Relu(a)", ["Relu"]),
        ("a = Mul(x, wide) y = Relu(a)", ["Mul", "Relu"]),  # it makes [4,2,3] of [2,3]
        ("a = Sub(zero, x) y = Relu(a)", ["Sub", "Relu"]),
        ("a = Transpose <perm=[1,0]> (x) b = Transpose <perm=[1,0]> (a) y = Relu(b)", ["Relu"]),
        ("a = Cast <to=11> (x) b = Cast <to=1> (a) y = Relu(b)", ["Relu"]),
        ("a = Cast <to=10> (x) b = Cast <to=1> (a) y = Relu(b)", ["Cast", "Cast", "Relu"]),
        ("a = Relu(x) b = Relu(a) y = Neg(b)", ["Relu", "Neg"]),
        ("a = Concat <axis=0> (x, x) b = Concat <axis=0> (a, x) y = Neg(b)", ["Concat", "Neg"]),
        ("a = Unsqueeze(x, ax) b = Squeeze(a, ax) y = Neg(b)", ["Neg"]),
        ("a = Unsqueeze(x, ax) b = Unsqueeze(a, ax) y = Neg(b)", ["Unsqueeze", "Neg"]),
        ("a = Reshape(x, flat) b = Reshape(a, back) y = Neg(b)", ["Reshape", "Neg"]),
        ("a = Flatten(x) b = Reshape(a, back) y = Neg(b)", ["Reshape", "Neg"]),
        ("a = Slice(x, from, to, ax) b = Slice(a, from, to, ax1) y = Neg(b)", ["Slice", "Neg"]),
        ("a = Slice(x, from, to, ax1) b = Slice(a, from, to, ax1) y = Neg(b)", ["Slice", "Slice", "Neg"]),
        ("a = Tile(x, ones) b = Pad(a, nopads) y = Neg(b)", ["Neg"]),
        ("a = Mul(x, two) b = Mul(a, two) y = Neg(b)", ["Mul", "Neg"]),
        ("a = Exp(x) b = Exp(x) y = Add(a, b)", ["Exp", "Add"]),
    ],
)
def test_pairs_and_neutral_elements(body, left):
    weights = """<float one = {1}, float[1] zero = {0}, float[4,1,1] wide = {1,1,1,1}, float two = {2},
        int64[1] ax = {0}, int64[1] ax1 = {1}, int64[1] flat = {-1}, int64[2] back = {3, 2},
        int64[1] from = {1}, int64[1] to = {9},
        int64[2] ones = {1, 1}, int64[4] nopads = {0, 0, 0, 0}>"""
    rank = "p,q,r" if "wide" in body else "p,q,r,s" if body.count("Unsqueeze") == 2 else "p,q"
    assert simplified(f"agraph (float[2,3] x) => (float[{rank}] y) {weights} {{ {body} }}", {"x": floats(2, 3)}) == left


def test_a_product_of_matrices_and_a_sum_are_one_gemm():
    text = """agraph (float[n,3] x) => (float[n,2] y) <float[2,3] w = {1,2,3,4,5,6}, float[2] b = {0.5, -1}>
        { t = Transpose <perm = [1, 0]> (w) m = MatMul(x, t) y = Add(b, m) }"""
    assert simplified(text, {"x": floats(4, 3)}) == ["Gemm"]


def test_a_sum_that_makes_the_product_larger_stays():
    text = """agraph (float[1,3] x) => (float[4,2] y) <float[3,2] w = {1,2,3,4,5,6}, float[4,1] b = {1,2,3,4}>
        { m = MatMul(x, w) y = Add(m, b) }"""
    assert simplified(text, {"x": floats(1, 3)}) == ["MatMul", "Add"]


@pytest.mark.parametrize(
    "after",
    [
        "y = BatchNormalization(c, s, b, m, v)",
        "d = Mul(c, k) y = Add(d, k)",
        "d = Div(c, k) y = Sub(k, d)",
        "d = Mul(c, half) y = Sub(d, half)",
    ],
)
@pytest.mark.parametrize("base", ["Conv <kernel_shape=[1,1]> (x, w)", "ConvTranspose <group=2> (x, wt, cb)"])
def test_what_is_done_to_each_channel_goes_into_the_weights(base, after):
    text = f"""agraph (float[n,2,3,3] x) => (float[n,4,p,q] y)
        <float[4,2,1,1] w = {{1,2,3,4,5,6,7,8}}, float[2,2,1,1] wt = {{1,-2,3,4}}, float[4] cb = {{1,0,2,-1}},
         float[4] s = {{1,2,0.5,1}}, float[4] b = {{0,1,-1,2}}, float[4] m = {{0.1,0,0.2,0.3}},
         float[4] v = {{1,2,1,0.5}}, float[4,1,1] k = {{1,2,4,-3}}, float half = {{0.5}}>
        {{ c = {base} {after} }}"""
    assert simplified(text, {"x": floats(2, 2, 3, 3)}) == [base.split()[0].split("(")[0]]


def test_weights_that_two_nodes_read_stay_as_they_are():
    text = """agraph (float[n,2,3,3] x) => (float[n,2,3,3] y) <float[2,2,1,1] w = {1,2,3,4}, float k = {3}>
        { a = Conv(x, w) b = Mul(a, k) c = Conv(b, w) y = Relu(c) }"""
    assert simplified(text, {"x": floats(1, 2, 3, 3)}) == ["Conv", "Mul", "Conv", "Relu"]


def test_zeros_around_an_image_become_the_pads_of_its_convolution():
    text = """agraph (float[n,1,5,5] x) => (float[n,1,p,q] y)
        <float[1,1,3,3] w = {1,2,3,4,5,6,7,8,9}, int64[8] pads = {0,0,1,2,0,0,0,1}>
        { a = Pad(x, pads) y = Conv <pads=[1,1,1,1]> (a, w) }"""
    assert simplified(text, {"x": floats(2, 1, 5, 5)}) == ["Conv"]


def test_ones_around_an_image_stay():
    text = """agraph (float[n,1,5,5] x) => (float[n,1,p,q] y)
        <float[1,1,3,3] w = {1,2,3,4,5,6,7,8,9}, int64[8] pads = {0,0,1,2,0,0,0,1}, float one = {1}>
        { a = Pad(x, pads, one) y = Conv(a, w) }"""
    assert simplified(text, {"x": floats(2, 1, 5, 5)}) == ["Pad", "Conv"]


def test_a_state_of_zeros_is_left_out():
    text = """agraph (float[t,b,2] x) => (float[t,1,b,3] y)
        <float[1,3,2] w = {1,2,3,4,5,6}, float[1,3,3] r = {1,0,0,0,1,0,0,0,1}, int64 at = {1}, int64[1] ax = {0},
         int64[1] one = {1}, int64[1] three = {3}>
        { s = Shape(x) n = Gather(s, at) u = Unsqueeze(n, ax) d = Concat <axis = 0> (one, u, three)
          h = ConstantOfShape(d) y = RNN <hidden_size = 3> (x, w, r, , , h) }"""
    assert simplified(text, {"x": floats(4, 2, 2)}) == ["RNN"]


def test_an_expand_that_the_sum_implies_is_left_out():
    text = """agraph (float[1,k] x, float[m,k] b) => (float[m,k] y) { s = Shape(b) e = Expand(x, s) y = Add(e, b) }"""
    assert simplified(text, {"x": floats(1, 4), "b": floats(3, 4)}) == ["Add"]


def test_an_input_with_a_default_is_no_constant():
    text = """agraph (float[2] x, float[1] k) => (float[2] y) <float[1] k = {2}, float[1] j = {3}>
        { c = Add(k, j) y = Mul(x, c) }"""
    proto = onnx.parser.parse_model(HEADER.format(ir=9, opset=17) + text)
    after = ir.to_proto(simplify_natively(ir.from_proto(proto), 100))
    assert [node.op_type for node in after.graph.node] == ["Add", "Mul"]
    x = floats(2)
    assert run(after, {"x": x, "k": np.array([5], np.float32)})[0].tolist() == (x * 8).tolist()


def test_int8_weights_stay_small():
    weights = onnx.numpy_helper.from_array(RNG.integers(-9, 9, (64, 64)).astype(np.int8), "w")
    nodes = [
        onnx.helper.make_node("Cast", ["w"], ["f"], to=1),
        onnx.helper.make_node("MatMul", ["x", "f"], ["y"]),
    ]
    specs = [onnx.helper.make_tensor_value_info(name, 1, ["n", 64]) for name in ("x", "y")]
    body = onnx.helper.make_graph(nodes, "g", specs[:1], specs[1:], [weights])
    proto = onnx.helper.make_model(body, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    after = ir.to_proto(simplify_natively(ir.from_proto(proto), proto.ByteSize()))
    assert [node.op_type for node in after.graph.node] == ["Cast", "MatMul"]


def test_old_files_get_no_initializer_that_is_no_input():
    text = """agraph (float[2,3] x, float[1] a, float[1] b) => (float[2,3] y) <float[1] a = {2}, float[1] b = {3}>
        { c = Add(a, b) y = Mul(x, c) }"""
    proto = onnx.parser.parse_model(HEADER.format(ir=3, opset=8) + text)
    after = ir.to_proto(simplify_natively(ir.from_proto(proto), proto.ByteSize()))
    onnx.checker.check_model(after, full_check=True)
    assert [i.name for i in after.graph.input] == ["x"]
    assert not after.graph.initializer
    x = floats(2, 3)
    np.testing.assert_allclose(run(after, {"x": x})[0], x * 5, rtol=1e-6)


NORMALIZED = """agraph (float[n,2,3] x) => (float[n,2,3] y)
    <float[3] s = {1,2,0.5}, float[3] b = {0,1,-1}, float eps = {0.001}, float two = {2}>
    { m = ReduceMean <axes = [-1]> (x) c = Sub(x, m) q = Pow(c, two) v = ReduceMean <axes = [-1]> (q) e = Add(v, eps)
      r = Sqrt(e) d = Div(c, r) t = Mul(d, s) y = Add(t, b) }"""


def test_a_layer_normalization_in_parts_becomes_one():
    assert simplified(NORMALIZED, {"x": floats(2, 2, 3)}) == ["LayerNormalization"]
    assert simplified(NORMALIZED, {"x": floats(2, 2, 3)}, opset=16).count("ReduceMean") == 2


def test_parts_of_a_normalization_that_others_read_stay():
    text = NORMALIZED.replace("(float[n,2,3] y)", "(float[n,2,3] y, float[n,2,3] c)")
    assert "LayerNormalization" not in simplified(text, {"x": floats(2, 2, 3)})
    over_two = NORMALIZED.replace("v = ReduceMean <axes = [-1]>", "v = ReduceMean <axes = [1]>")
    assert "LayerNormalization" not in simplified(over_two, {"x": floats(2, 2, 3)})
