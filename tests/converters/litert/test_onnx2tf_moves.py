"""What stands in for onnx2tf at single nodes, beside ONNX Runtime; in use TensorFlow is the environment's."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from deploykit.converters.litert.onnx2tf_moves import move_of
from deploykit.converters.litert.onnx2tf_segments import Segments

pytest.importorskip("tensorflow")
RANDOM = np.random.default_rng(0)


def reference(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)


def one_node(text: str) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}')
    onnx.checker.check_model(model)
    return model


@pytest.mark.parametrize(
    "text",
    [
        "agraph (float[2,3,4] x) => (float[4,2,3] y) { y = Transpose<perm=[2,0,1]>(x) }",
        "agraph (float[2,3,4] x) => (float[4,3,2] y) { y = Transpose(x) }",
        "agraph (float[b,3,4] x) => (float[b,12] y) <int64[2] s = {0,-1}> { y = Reshape(x, s) }",
        "agraph (float[2,3,4] x) => (float[2,1,3,1,4] y) <int64[2] a = {1,3}> { y = Unsqueeze(x, a) }",
        "agraph (float[2,1,4] x) => (float[2,4] y) <int64[1] a = {1}> { y = Squeeze(x, a) }",
        "agraph (float[2,3,4] x) => (float[2,2,4] y) <int64[2] i = {-1,0}> { y = Gather<axis=1>(x, i) }",
        "agraph (float[2,3,4] x) => (float[2,6,4] y) { y = Concat<axis=-2>(x, x) }",
        (
            "agraph (float[2,8,4] x) => (float[2,3,4] y) <int64[1] s = {1}, int64[1] e = {-1}, int64[1] a = {1}, "
            "int64[1] t = {2}> { y = Slice(x, s, e, a, t) }"
        ),
        (
            "agraph (float[2,8,4] x) => (float[2,2,4] y) <int64[1] s = {-2}, int64[1] e = {9223372036854775807}, "
            "int64[1] a = {1}> { y = Slice(x, s, e, a) }"
        ),
        "agraph (float[2,3,4] x) => (int64[2] y) { y = Shape<start=1>(x) }",
        "agraph (float[2,3,4] x) => (int32[2,3,4] y) { y = Cast<to=6>(x) }",
        "agraph (float[2,3,4] x) => (float[2,3,4] y) <float[3,1] c = {1,2,3}> { y = Div(x, c) }",
        "agraph (float[2,3,4] x) => (float[2,3,4] y) <float l = {-1}, float h = {1}> { y = Clip(x, l, h) }",
        "agraph (float[2,3,4] x) => (float[2,3,4] y) { y = HardSwish(x) }",
        "agraph (float[2,3,4] x) => (float[2,3,4] y) { y = HardSigmoid<alpha=0.3, beta=0.4>(x) }",
        "agraph (float[2,3,4] x) => (float[2,3,4] y) { y = LeakyRelu<alpha=0.2>(x) }",
        "agraph (float[2,3,4] x) => (float[2,3,4] y) { y = Softmax<axis=1>(x) }",
        "agraph (float[2,3,4] x) => (float[2,1,4] y) { y = ReduceMean<axes=[1]>(x) }",
        "agraph (float[2,3,4] x) => (float[2] y) <int64[2] a = {1,-1}> { y = ReduceSum<keepdims=0>(x, a) }",
        "agraph (float[2,3,4] x) => (float[2,3,1] y) { y = GlobalAveragePool(x) }",
        (
            "agraph (float[2,3,4] x) => (float[2,3,4] y) <float[3] s = {1,2,3}, float[3] b = {1,0,2}, "
            "float[3] m = {0,1,1}, float[3] v = {1,4,2}> { y = BatchNormalization<epsilon=0.01>(x, s, b, m, v) }"
        ),
        "agraph (float[2,3,4] x) => (float[2,3,4] y) <float[1] c = {0.5}> { y = Max(x, c) }",
        "agraph (float[2,3,4] x) => (float[2,3,4] y) <float e = {2}> { y = Pow(x, e) }",
    ],
)
def test_a_move_gives_what_onnxruntime_gives(text: str) -> None:
    model = one_node(text)
    shape = [dim.dim_value or 2 for dim in model.graph.input[0].type.tensor_type.shape.dim]
    x = (RANDOM.standard_normal(shape) * 3).astype(np.float32)
    compute = move_of(model)
    assert compute is not None
    (found,) = compute(x)
    (wanted,) = reference(model, {"x": x})
    assert np.asarray(found).dtype == wanted.dtype
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("op", "more"), [("LSTM", {}), ("GRU", {}), ("GRU", {"linear_before_reset": 1})])
@pytest.mark.parametrize("started", [False, True])
def test_recurrent_operators_of_any_length(op: str, more: dict[str, int], direction: str, started: bool) -> None:
    gates, directions = (4 if op == "LSTM" else 3), (2 if direction == "bidirectional" else 1)
    hidden, width = 5, 4
    states = ["h", "c"][: 1 if op == "GRU" else 2] if started else []
    outputs = ["y", "y_h", *(["y_c"] if op == "LSTM" else [])]
    weights = {
        "w": RANDOM.standard_normal((directions, gates * hidden, width)),
        "r": RANDOM.standard_normal((directions, gates * hidden, hidden)),
        "b": RANDOM.standard_normal((directions, 2 * gates * hidden)),
    }
    node = helper.make_node(
        op, ["x", "w", "r", "b", "", *states], outputs, hidden_size=hidden, direction=direction, **more
    )
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["t", "n", width]),
            *(helper.make_tensor_value_info(name, TensorProto.FLOAT, [directions, "n", hidden]) for name in states),
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    compute = move_of(model)
    assert compute is not None
    for length, batch in ((1, 1), (6, 3)):
        feeds = {"x": RANDOM.standard_normal((length, batch, width)).astype(np.float32)}
        feeds |= {name: RANDOM.standard_normal((directions, batch, hidden)).astype(np.float32) for name in states}
        for found, wanted in zip(compute(list(feeds.values())), reference(model, feeds), strict=True):
            np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-5, atol=1e-6)


CHAIN = """<ir_version: 8, opset_import: ["" : 17]>
agraph (float[n,2,3] x) => (float[n,6] y, float[3,2] k) <int64[2] s = {0,-1}, float[2,3] c = {1,2,3,4,5,6}> {
  [first] t = Transpose<perm=[0,2,1]>(x)
  [second] y = Reshape(t, s)
  [constant] k = Transpose(c)
}"""
FEEDS = [{"x": RANDOM.standard_normal((n, 2, 3)).astype(np.float32)} for n in (1, 3)]


class Wrong:
    """A Keras model that gives something else."""

    input_names = ("i0",)

    def __call__(self, given):
        return given * 0.0


@pytest.mark.parametrize("failing", ["stops", "wrong"])
def test_what_fails_as_a_whole_is_cut_down_to_nodes_that_are_right(failing: str) -> None:
    def convert(**settings):
        if failing == "stops":
            raise SystemExit(1)
        return Wrong()

    segments = Segments(onnx.parser.parse_model(CHAIN), FEEDS, convert)
    segments.build()
    assert [piece.nodes for piece in segments.pieces] == [1, 1]
    assert segments.refusals == []
    np.testing.assert_array_equal(segments.constants()["k"], np.arange(1, 7, dtype=np.float32).reshape(2, 3).T)
    tensors = dict(FEEDS[1])
    for piece in segments.pieces:
        piece(tensors)
    np.testing.assert_array_equal(np.asarray(tensors["y"]), FEEDS[1]["x"].transpose(0, 2, 1).reshape(3, 6))


def test_a_node_that_nothing_converts_is_refused_by_name_and_the_others_are_tried() -> None:
    text = CHAIN.replace("[second] y = Reshape(t, s)", "[odd] o = Sin(t) [second] y = Reshape(o, s) ")

    def convert(**settings):
        raise ValueError("no\nsuch thing")

    segments = Segments(onnx.parser.parse_model(text), FEEDS, convert)
    segments.build()
    assert [(found.node, found.op) for found in segments.refusals] == [("odd", "Sin")]
    assert segments.refusals[0].reason == "onnx2tf stops: ValueError: no such thing"
    assert len(segments.pieces) == 2


def test_channels_at_the_back_come_to_the_front_again() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    agraph (float[n,2,3,4] x) => (float[n,2,3,4] y) { [only] y = Sin(x) }"""

    class Last:
        input_names = ("i0",)

        def __call__(self, given):
            import tensorflow as tf

            return tf.transpose(tf.sin(given), [0, 2, 3, 1])

    feeds = [{"x": RANDOM.standard_normal((n, 2, 3, 4)).astype(np.float32)} for n in (1, 3)]
    segments = Segments(onnx.parser.parse_model(text), feeds, lambda **settings: Last())
    segments.build()
    assert [piece.permutations for piece in segments.pieces] == [[(0, 3, 1, 2)]]
