"""What fixed sizes decide becomes constants; what inputs decide stays."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from deploykit.converters.litert.onnx2tf_folding import folded
from deploykit.converters.litert.onnx2tf_moves import move_of
from deploykit.converters.litert.onnx2tf_segments import Segments
from deploykit.converters.litert.onnx2tf_values import axes_that_fit

# As Paddle writes it: the sizes of one reshaped tensor decide the shape of the next, and a 0 keeps a size.
CHAIN = """<ir_version: 8, opset_import: ["" : 17]>
agraph (float[SIZE,6,4] x) => (float[a,b,c] y, int64[r] last)
    <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] rest = {-1}, int64[2] flat = {0,-1}> {
  [s] s = Shape(x)
  [n] n = Slice(s, zero, one)
  [to] to = Concat<axis=0>(n, rest)
  [first] r1 = Reshape(x, to)
  [s2] s2 = Shape(r1)
  [w] w = Slice(s2, one, two)
  [to2] to2 = Concat<axis=0>(zero, one, w)
  [second] y = Reshape(r1, to2)
  [last] last = Mul(s2, two)
}"""


def test_shapes_that_follow_from_shapes_are_folded_where_sizes_are_fixed() -> None:
    model = onnx.parser.parse_model(CHAIN.replace("SIZE", "2"))
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 6, 4)).astype(np.float32)}
    wanted = ort.InferenceSession(model.SerializeToString()).run(["y", "last"], feeds)
    made = folded(model)
    assert [node.name for node in made.graph.node] == ["first", "second"]
    found = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in made.graph.initializer}
    np.testing.assert_array_equal(found["last"], wanted[1])
    del made.graph.output[1]  # ONNX Runtime takes no constant as an output
    np.testing.assert_array_equal(ort.InferenceSession(made.SerializeToString()).run(["y"], feeds)[0], wanted[0])


def test_open_sizes_and_random_numbers_stay() -> None:
    made = folded(onnx.parser.parse_model(CHAIN.replace("SIZE", "n")))
    assert len(made.graph.node) == 9
    text = """<ir_version: 8, opset_import: ["" : 17]>
    agraph (float[2,3] x) => (float[2,3] y) { [s] s = Shape(x) [r] r = RandomUniformLike(x) [a] y = Add(x, r) }"""
    assert [node.name for node in folded(onnx.parser.parse_model(text)).graph.node] == ["r", "a"]


@pytest.mark.parametrize("allowed", [0, 1])
def test_a_computed_shape_keeps_sizes_unless_zeros_are_allowed(allowed: int) -> None:
    tf = pytest.importorskip("tensorflow")
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    agraph (float[n,6,4] x, int64[2] s) => (float[a,b] y) {{ y = Reshape<allowzero={allowed}>(x, s) }}"""
    model = onnx.parser.parse_model(text)
    x = np.zeros((2, 6, 0 if allowed else 4), np.float32)
    shape = np.array([0, 5] if allowed else [0, -1], np.int64)
    move = move_of(model)
    assert move is not None
    if allowed:
        model.graph.input[0].type.tensor_type.shape.dim[2].Clear()
    wanted = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x, "s": shape})[0]
    assert tuple(move([tf.constant(x), tf.constant(shape)])[0].shape) == wanted.shape


def test_only_sigmoids_may_be_off_by_what_onnx_runtime_is() -> None:
    x = np.linspace(-30, 0, 3001).astype(np.float32)
    text = """<ir_version: 8, opset_import: ["" : 17]>
    agraph (float[n] x) => (float[n] y, float[n] z) { s = Sigmoid(x) y = Identity(s) z = Mul(s, s) }"""
    model = onnx.parser.parse_model(text)
    slacks = Segments(model, [{"x": x}], lambda **settings: None).slacks
    assert set(slacks) == {"s", "y"}
    found = ort.InferenceSession(model.SerializeToString()).run(["y"], {"x": x})[0]
    exact = 1 / (1 + np.exp(-x.astype(np.float64)))
    assert 2.0**-24 < np.abs(found - exact).max() < slacks["s"] / 2
    small = (found[:1800], exact[:1800].astype(np.float32))
    assert axes_that_fit([small]) is None
    assert axes_that_fit([small], slacks["s"]) == ()
    assert axes_that_fit([(small[0], small[1] * 0.5)], slacks["s"]) is None


def test_without_time_nothing_is_made_of_it() -> None:
    from deploykit.converters.litert.onnx2tf_segments import LateError

    def convert(**settings):
        raise ValueError("no")

    model = onnx.parser.parse_model(CHAIN.replace("SIZE", "n"))
    feeds = [{"x": np.ones((size, 6, 4), np.float32)} for size in (1, 2)]
    with pytest.raises(LateError):
        Segments(model, feeds, convert, late=lambda: True).build()
