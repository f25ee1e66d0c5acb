from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from quantize_models import onnx_text, run

from deploykit import graph
from deploykit.quantize.half import HalfResult, convert_to_half
from deploykit.quantize.prepare import load_float

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def halved(path: Path, **options) -> tuple[Path, ir.Model, HalfResult]:
    """Converts, saves and fully checks."""
    model, _ = load_float(path, minimum_opset=0, fold=False)
    result = convert_to_half(model, **options)
    graph.infer_shapes(model)
    out = path.with_name("half.onnx")
    graph.save(model, out)
    onnx.checker.check_model(str(out), full_check=True)
    return out, model, result


def check(path: Path, feeds: dict[str, np.ndarray], **options) -> tuple[ir.Model, HalfResult]:
    """Converts and compares with float within the half-precision tolerance."""
    out, model, result = halved(path, **options)
    halves = {value.name for value in model.graph.inputs if value.dtype == ir.DataType.FLOAT16}
    found = run(out, {name: feed.astype(np.float16) if name in halves else feed for name, feed in feeds.items()})
    reference = run(path, feeds, optimize=False)
    assert list(found) == list(reference)
    for name, expected in reference.items():
        limit = 1e-2 * np.abs(expected) + 2e-3 * np.abs(expected).max(initial=0)
        assert np.all(np.abs(found[name].astype(np.float64) - expected) <= limit), name
    return model, result


def nodes(model: ir.Model, op: str) -> list[ir.Node]:
    return [node for node in model.graph.all_nodes() if node.op_type == op]


def test_inputs_weights_and_outputs_become_half(tmp_path):
    path = onnx_text("g (float[n,4] x) => (float[n,4] y) { y = MatMul (x, w) }", tmp_path / "m.onnx", w=normal(4, 4))
    model, result = check(path, {"x": normal(3, 4)})
    assert model.graph.inputs[0].dtype == model.graph.outputs[0].dtype == ir.DataType.FLOAT16
    assert model.graph.initializers["w"].dtype == ir.DataType.FLOAT16
    assert not nodes(model, "Cast")
    assert len(result.converted) == 1


def test_keep_io_keeps_names_types_and_order(tmp_path):
    text = """g (float[n,4] x) => (float[n,4] y, float[n,4] z, float[n,4] copy) {
        y = Relu (x)
        z = Mul (y, x)
        copy = Identity (x)
    }"""
    path = onnx_text(text, tmp_path / "m.onnx")
    model, _ = check(path, {"x": normal(3, 4)}, keep_io=True)
    assert [(o.name, o.dtype) for o in model.graph.outputs] == [(n, ir.DataType.FLOAT) for n in ("y", "z", "copy")]
    assert len([node for node in nodes(model, "Cast") if node.inputs[0].name == "x"]) == 1


def test_a_weight_of_30000_is_exact(tmp_path):
    weight = np.float32([[3e4, 1.0], [0.5, 2.0]])
    path = onnx_text("g (float[n,2] x) => (float[n,2] y) { y = MatMul (x, w) }", tmp_path / "m.onnx", w=weight)
    model, _ = check(path, {"x": np.float32([[1.0, 1.0]])})
    assert model.graph.initializers["w"].const_value.numpy()[0, 0] == 3e4


def test_a_weight_beyond_half_stays_in_a_float_island(tmp_path):
    text = "g (float[n,2] x) => (float[n,2] y) { [mm] a = MatMul (x, w)  b = Div (a, big)  y = Relu (b) }"
    path = onnx_text(text, tmp_path / "m.onnx", w=np.float32([[1e6, 0], [0, 2e6]]), big=np.float32([1e6]))
    model, result = check(path, {"x": np.abs(normal(3, 2))}, peaks={"a": 5e6, "x": 1.0, "b": 5.0, "y": 5.0})
    assert next(name for name, _, _ in result.islands) == "mm"
    assert model.graph.initializers["w"].dtype == ir.DataType.FLOAT


def test_an_attention_mask_of_the_lowest_float_keeps_its_meaning(tmp_path):
    text = """g (float[2,5] scores, int64[2,5] mask) => (float[2,5] y) {
        m = Cast <to=1> (mask)
        inverse = Sub (one, m)
        bias = Mul (inverse, lowest)
        masked = Add (scores, bias)
        y = Softmax (masked)
    }"""
    lowest = np.float32([np.finfo(np.float32).min])
    path = onnx_text(text, tmp_path / "m.onnx", one=np.float32([1]), lowest=lowest)
    check(path, {"scores": normal(2, 5), "mask": np.int64([[1, 1, 1, 0, 0], [1, 0, 0, 0, 0]])})


def test_measured_overflow_makes_an_island_where_constants_do_not_tell(tmp_path):
    text = "g (float[n,2] x) => (float[n,2] y) { [square] a = Mul (x, x)  [root] y = Sqrt (a) }"
    path = onnx_text(text, tmp_path / "m.onnx")
    feeds = {"x": np.float32([[1000.0, 3.0]])}
    _, blind, _ = halved(path)
    assert blind is not None
    _, result = check(path, feeds, peaks={"x": 1000.0, "a": 1e6, "y": 1000.0})
    assert {name for name, _, _ in result.islands} == {"square", "root"}


def test_sizes_and_positions_stay_exact(tmp_path):
    text = """g (float[n,1] x) => (int64[1] rows) {
        shape = Shape <start=0, end=1> (x)
        f = Cast <to=1> (shape)
        doubled = Mul (f, two)
        rows = Cast <to=7> (doubled)
    }"""
    path = onnx_text(text, tmp_path / "m.onnx", two=np.float32([2]))
    out, _, _ = halved(path)
    assert run(out, {"x": np.zeros((4099, 1), np.float16)})["rows"] == 8198


def test_resize_keeps_its_scales_in_float(tmp_path):
    text = 'g (float[1,1,4,4] x) => (float[1,1,8,8] y) { y = Resize <mode="linear"> (x, , scales) }'
    path = onnx_text(text, tmp_path / "m.onnx", scales=np.float32([1, 1, 2, 2]))
    model, _ = check(path, {"x": normal(1, 1, 4, 4)})
    assert model.graph.initializers["scales"].dtype == ir.DataType.FLOAT


def test_a_constant_read_in_both_precisions_exists_in_both(tmp_path):
    text = """g (float[1,1,4,4] x) => (float[1,1,8,8] y) {
        r = Resize <mode="linear"> (x, , c)
        y = Mul (r, c2)
        c2 = Identity (c)
    }""".replace("y = Mul (r, c2)\n        c2 = Identity (c)", "s = ReduceSum (c)\n        y = Mul (r, s)")
    path = onnx_text(text, tmp_path / "m.onnx", c=np.float32([1, 1, 2, 2]))
    check(path, {"x": normal(1, 1, 4, 4)})


@pytest.mark.parametrize("keep_io", [True, False])
def test_if_bodies_convert_with_casts_in_the_right_graph(tmp_path, keep_io):
    text = """g (float[2,2] x, bool c) => (float[2,2] y) {
        a = Relu (x)
        b = If (c) <
            then_branch = t () => (float[2,2] ty) { ty = Mul (a, w) },
            else_branch = e () => (float[2,2] ey) {
                r = RandomUniform <dtype=1, low=1.0, high=1.0000001, shape=[2,2], seed=1.0> ()
                ey = Add (a, r)
            }
        >
        y = Abs (b)
    }"""
    path = onnx_text(text, tmp_path / "m.onnx", w=normal(2, 2))
    for condition in (True, False):
        check(path, {"x": normal(2, 2), "c": np.array(condition)}, keep_io=keep_io)


def test_loop_state_is_half_on_all_sides(tmp_path):
    text = """g (float[2] x, int64 n) => (float[2] last, float[k,2] all) {
        last, all = Loop (n, , x) <
            body = b (int64 i, bool go, float[2] state) => (bool on, float[2] next, float[2] out) {
                on = Identity (go)
                next = Mul (state, factor)
                out = Exp (next)
            }
        >
    }"""
    path = onnx_text(text, tmp_path / "m.onnx", factor=np.float32([0.5, -0.5]))
    check(path, {"x": normal(2), "n": np.array(4)})


def test_scan_body(tmp_path):
    text = """g (float[2] s, float[5,2] xs) => (float[2] last, float[5,2] ys) {
        last, ys = Scan <num_scan_inputs=1, body = b (float[2] state, float[2] x) => (float[2] next, float[2] y) {
            next = Add (state, x)
            y = Tanh (next)
        }> (s, xs)
    }"""
    check(onnx_text(text, tmp_path / "m.onnx"), {"s": normal(2), "xs": normal(5, 2)})


@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrent_layers(tmp_path, op, gates):
    text = f"g (float[3,2,4] x) => (float[3,1,2,5] y) {{ y = {op} <hidden_size=5> (x, w, r, b, lengths) }}"
    weights = {"w": normal(1, gates * 5, 4), "r": normal(1, gates * 5, 5), "b": normal(1, gates * 10)}
    path = onnx_text(text, tmp_path / "m.onnx", lengths=np.int32([3, 2]), **weights)
    model, _ = check(path, {"x": normal(3, 2, 4)})
    assert model.graph.initializers["lengths"].dtype == ir.DataType.INT32


def test_sequences_stay_float(tmp_path):
    text = """g (float[2] a, float[2] b) => (float[4] y) {
        s = SequenceConstruct (a, b)
        c = ConcatFromSequence <axis=0> (s)
        y = Relu (c)
    }"""
    _, result = check(onnx_text(text, tmp_path / "m.onnx"), {"a": normal(2), "b": normal(2)})
    assert {op for _, op, _ in result.islands} == {"SequenceConstruct", "ConcatFromSequence"}


def test_constant_of_shape_fills_with_half(tmp_path):
    text = """g (float[n,2] x) => (float[n,2] y) {
        shape = Shape (x)
        ones = ConstantOfShape <value = float[1] {2.5}> (shape)
        y = Mul (ones, x)
    }"""
    model, _ = check(onnx_text(text, tmp_path / "m.onnx"), {"x": normal(3, 2)})
    assert not nodes(model, "Cast")


def test_classic_machine_learning_operators_stay_float(tmp_path):
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 3]> g (float[n,3] x) => (float[n,3] y) {
            a = Mul (x, x)
            b = ai.onnx.ml.Scaler <offset=[0.0,0.0,0.0], scale=[2.0,2.0,2.0]> (a)
            y = Relu (b)
        }"""
    )
    onnx.save(model, tmp_path / "m.onnx")
    _, result = check(tmp_path / "m.onnx", {"x": normal(2, 3)})
    assert [op for _, op, _ in result.islands] == ["Scaler"]


def test_excluded_nodes_stay_float(tmp_path):
    text = "g (float[n,4] x) => (float[n,4] y) { [mm] a = MatMul (x, w)  y = Relu (a) }"
    path = onnx_text(text, tmp_path / "m.onnx", w=normal(4, 4))
    model, result = check(path, {"x": normal(3, 4)}, exclude=("mm",))
    assert result.islands == [("mm", "MatMul", "excluded")]
    assert model.graph.initializers["w"].dtype == ir.DataType.FLOAT


def test_values_that_become_zero_are_counted(tmp_path):
    path = onnx_text(
        "g (float[2] x) => (float[2] y) { y = Add (x, w) }", tmp_path / "m.onnx", w=np.float32([1e-9, 1.0])
    )
    _, result = check(path, {"x": np.float32([1, 2])})
    assert result.underflow == {"w": 0.5}


def test_a_cast_to_float_is_retargeted(tmp_path):
    text = "g (int64[n,4] ids) => (float[n,4] y) { a = Cast <to=1> (ids)  b = MatMul (a, w)  y = Cast <to=1> (b) }"
    path = onnx_text(text, tmp_path / "m.onnx", w=normal(4, 4))
    model, _ = check(path, {"ids": np.int64([[1, 2, 3, 4]])})
    assert {node.attributes.get_int("to") for node in nodes(model, "Cast")} == {int(ir.DataType.FLOAT16)}
