import numpy as np
import onnx
import pytest
from quantize_models import onnx_text, run, sqnr_db

from deploykit import graph
from deploykit.quantize.folding import fold_weights
from deploykit.quantize.prepare import load_float
from deploykit.quantize.settings import Settings
from deploykit.quantize.weight_only import quantize_weight_only, quantize_weights

RNG = np.random.default_rng(0)
TEXT = """g (float[n,32] x, float[32,4] k) => (float[n,4] y, float[n,4] z) {
    [big] a = MatMul (x, w)
    [tied] b = Gemm <transB=1> (a, w)
    [small] y = MatMul (b, s)
    [computed] z = MatMul (x, k)
}"""


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


@pytest.fixture
def model(tmp_path):
    path = onnx_text(TEXT, tmp_path / "m.onnx", w=normal(32, 32), s=normal(32, 4))
    return path, load_float(path)[0]


def made(path, **settings):
    """The quantized model beside `path`, and its facts."""
    out = path.with_name("weights.onnx")
    facts = quantize_weight_only(path, out, Settings(**settings), lambda _: None)
    onnx.checker.check_model(str(out), full_check=True)
    return out, facts


def test_weights_become_int8_and_results_stay_close(model, tmp_path):
    path, loaded = model
    done, left = quantize_weights(loaded)
    assert done == ["big", "tied", "small"]
    assert [(item.name, "no weight" in item.reason) for item in left] == [("computed", True)]
    graph.save(loaded, tmp_path / "q.onnx")
    onnx.checker.check_model(str(tmp_path / "q.onnx"), full_check=True)
    feeds = {"x": normal(3, 32), "k": normal(32, 4)}
    reference, found = run(path, feeds), run(tmp_path / "q.onnx", feeds)
    assert sqnr_db(reference["y"], found["y"]) > 35
    assert np.allclose(reference["z"], found["z"], rtol=1e-5, atol=1e-5)
    types = {tensor.const_value.dtype.name for tensor in loaded.graph.initializers.values()}
    assert types == {"INT8", "FLOAT"}
    assert "w" not in loaded.graph.initializers


def test_exclusion(model):
    _, loaded = model
    done, left = quantize_weights(loaded, exclude=("Gemm", "small"))
    assert done == ["big"]
    assert {item.name for item in left if item.reason == "excluded"} == {"tied", "small"}


@pytest.mark.parametrize("target", ["onnxruntime", "coreml"])
@pytest.mark.parametrize(("axis", "shape"), [(0, (500, 24)), (1, (24, 300)), (0, (90, 8, 9))])
def test_a_table_keeps_a_scale_for_each_row_that_gather_picks(tmp_path, axis, shape, target):
    table = normal(*shape) * np.logspace(-2, 2, shape[axis], dtype=np.float32).reshape(
        [-1 if i == axis else 1 for i in range(len(shape))]
    )
    text = f"g (int64[2,a] i) => (float y) {{ y = Gather <axis = {axis}> (t, i) }}"
    path = onnx_text(
        text.replace("float y", f"float[{','.join('?' * (len(shape) + 1))}] y"), tmp_path / "m.onnx", t=table
    )
    out, facts = made(path, target=target)
    assert facts["metrics"]["quantized_nodes"] == 1
    assert out.stat().st_size < path.stat().st_size / 3
    ids = RNG.integers(0, shape[axis], (2, 7))
    expected, found = run(path, {"i": ids})["y"], run(out, {"i": ids})["y"]
    assert found.shape == expected.shape
    rows = zip(np.moveaxis(expected, axis, 0).reshape(14, -1), np.moveaxis(found, axis, 0).reshape(14, -1), strict=True)
    if axis == 0:
        rows = zip(expected.reshape(14, -1), found.reshape(14, -1), strict=True)
        assert min(sqnr_db(one, other) for one, other in rows) > 35
    assert sqnr_db(expected, found) > 35


@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize("count", [1, 2])
def test_recurrent_layers(tmp_path, op, gates, count):
    direction = "bidirectional" if count == 2 else "forward"
    text = f"""g (float[t,b,24] x) => (float[t,{count},b,40] y) {{
        y = {op} <hidden_size = 40, direction = "{direction}"> (x, w, r, bias)
    }}"""
    weights = {"w": (count, gates * 40, 24), "r": (count, gates * 40, 40), "bias": (count, gates * 80)}
    path = onnx_text(text, tmp_path / "m.onnx", **{name: normal(*shape) / 4 for name, shape in weights.items()})
    out, facts = made(path)
    assert facts["metrics"]["quantized_nodes"] == 1
    assert out.stat().st_size < path.stat().st_size / 2
    feeds = {"x": normal(9, 2, 24)}
    assert sqnr_db(run(path, feeds)["y"], run(out, feeds)["y"]) > 33
    _, facts = made(path, target="coreml")
    assert facts["metrics"]["quantized_nodes"] == 0
    assert "in float only" in facts["findings"][0]["message"]


def test_what_a_loop_repeats_is_dequantized_before_it_and_what_a_branch_needs_inside(tmp_path):
    text = """g (bool c, float[4,32] x, int64 n) => (float[4,32] y, float[4,32] z) {
        y = If (c) <
            then_branch = one () => (float[4,32] a) { [left] a = MatMul (x, w) },
            else_branch = two () => (float[4,32] b) { b = Neg (x) }
        >
        go = Constant <value = bool {1}> ()
        z = Loop (n, go, x) <
            body = step (int64 i, bool g, float[4,32] s) => (bool h, float[4,32] r) {
                h = Identity (g)
                [inner] r = MatMul (s, v)
            }
        >
    }"""
    path = onnx_text(text, tmp_path / "m.onnx", w=normal(32, 32), v=normal(32, 32) / 6)
    out, facts = made(path)
    assert facts["metrics"]["quantized_nodes"] == 2
    assert facts["metrics"]["float_nodes"] == 0
    model = onnx.load(out)
    branches = {
        (node.op_type, attribute.name): [inner.op_type for inner in attribute.g.node]
        for node in model.graph.node
        for attribute in node.attribute
        if attribute.HasField("g")
    }
    assert "DequantizeLinear" in branches["If", "then_branch"]
    assert "DequantizeLinear" not in branches["Loop", "body"]
    assert [node.op_type for node in model.graph.node].count("DequantizeLinear") == 1
    for condition in (True, False):
        feeds = {"c": np.array(condition), "x": normal(4, 32), "n": np.array(3)}
        expected, found = run(path, feeds), run(out, feeds)
        assert all(sqnr_db(expected[name], found[name]) > 33 for name in expected)


def test_float_stays_where_integers_would_not_be_smaller(tmp_path):
    path = onnx_text(
        "g (float[n,64] x) => (float[n,1] y) { [dot] y = MatMul (x, w) }", tmp_path / "m.onnx", w=normal(64, 1)
    )
    _, facts = made(path)
    assert facts["metrics"]["quantized_nodes"] == 0
    assert "64 elements" in facts["findings"][0]["message"]


def test_weights_that_only_move_are_folded_first(tmp_path):
    text = """g (float[t,1,16] x, float[n,48] u, float[48,8] k) => (float[t,1,1,32] y, float[n,24] z, float[n,8] o) {
        one = Constant <value = int64[1] {0}> ()
        half = Slice (w, start, middle)
        rest = Slice (w, middle, end)
        both = Concat <axis = 0> (rest, half)
        gates = Unsqueeze (both, one)
        [lstm] y = LSTM <hidden_size = 32> (x, gates, r)
        turned = Transpose <perm = [1, 0]> (v)
        [product] z = MatMul (u, turned)
        same = Identity (k)
        [computed] o = MatMul (u, same)
    }"""
    weights = {"w": normal(128, 16), "r": normal(1, 128, 32), "v": normal(24, 48)}
    numbers = {"start": np.array([0]), "middle": np.array([64]), "end": np.array([128])}
    path = onnx_text(text, tmp_path / "m.onnx", **weights, **numbers)
    model, _ = load_float(path)
    assert fold_weights(model) == 2
    assert {node.op_type for node in model.graph} == {"LSTM", "MatMul", "Identity"}
    out, facts = made(path)
    assert facts["metrics"]["quantized_nodes"] == 2
    feeds = {"x": normal(5, 1, 16), "u": normal(3, 48), "k": normal(48, 8)}
    expected, found = run(path, feeds), run(out, feeds)
    assert all(sqnr_db(expected[name], found[name]) > 33 for name in expected)


def test_nothing_to_quantize_is_said(tmp_path):
    path = onnx_text("g (float[n,4] x) => (float[n,4] y) { y = MatMul (x, w) }", tmp_path / "m.onnx", w=normal(4, 4))
    _, facts = made(path)
    assert facts["metrics"]["quantized_nodes"] == 0
    assert "DK347" in [finding["code"] for finding in facts["findings"] if finding["severity"] == "warning"]
