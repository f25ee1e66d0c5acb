"""Every form that a model may have: functions, old opsets, bodies in bodies, operators with types of their own."""

import numpy as np
import onnx
import pytest
from half_models import FORMATS, halved, misses, run_half
from quantize_models import onnx_text, run

from deploykit.quantize.half_formats import BFLOAT16

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


@pytest.fixture(params=FORMATS)
def form(request):
    return FORMATS[request.param]


def test_functions_are_inlined(tmp_path, form):
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17, "own": 1]>
        g (float[n,4] x) => (float[n,4] y) { a = own.scale (x)  y = own.scale (a) }
        <domain: "own", opset_import: ["": 17]>
        scale (a) => (b) { half = Constant <value_float = 0.5> ()  c = Mul (a, half)  b = Tanh (c) }"""
    )
    onnx.save(model, tmp_path / "m.onnx")
    wrong, result = misses(tmp_path / "m.onnx", {"x": normal(3, 4)}, form)
    assert not wrong
    assert not result.islands
    assert len(result.converted) == 4


@pytest.mark.parametrize("opset", [7, 9, 11, 12, 13, 15, 18, 21])
def test_opsets(tmp_path, form, opset):
    clip = "Clip <min=-1.0, max=1.0> (r)" if opset < 11 else "Clip (r, low, high)"
    drop = "Squeeze <axes=[2,3]> (p)" if opset < 13 else "Squeeze (p, axes)"
    text = f"""g (float[2,3,5,5] x) => (float[2,4] y) {{
        c = Conv (x, w)  n = BatchNormalization (c, s, b, m, v)  r = Relu (n)  k = {clip}
        p = GlobalAveragePool (k)  q = {drop}  d = MatMul (q, u)  y = Softmax <axis=1> (d)
    }}"""
    weights = {
        "w": normal(4, 3, 3, 3), "s": normal(4), "b": normal(4), "m": normal(4), "v": np.abs(normal(4)) + 0.5,
        "u": normal(4, 4),
    }  # fmt: skip
    weights |= {"low": np.float32(-1), "high": np.float32(1)} if opset >= 11 else {}
    weights |= {"axes": np.int64([2, 3])} if opset >= 13 else {}
    path = onnx_text(text, tmp_path / "m.onnx", opset=opset, **weights)
    wrong, result = misses(path, {"x": normal(2, 3, 5, 5)}, form)
    assert not wrong
    assert not result.islands


@pytest.mark.parametrize("keep_io", [False, True])
def test_bodies_in_bodies_read_values_of_all_graphs_around(tmp_path, form, keep_io):
    text = """g (float[2] x, bool c, int64 n) => (float[2] y) {
        outer = Mul (x, w)
        a = If (c) <
            then_branch = t () => (float[2] ty) {
                middle = Add (outer, w)
                ty, all = Loop (n, , middle) <
                    body = b (int64 i, bool go, float[2] state) => (bool on, float[2] next, float[2] out) {
                        on = Identity (go)
                        s = Add (state, middle)
                        u = Mul (s, w)
                        next = Sub (u, outer)
                        out = Identity (next)
                    }
                >
            },
            else_branch = e () => (float[2] ey) { ey = Identity (outer) }
        >
        y = Add (a, outer)
    }"""
    path = onnx_text(text, tmp_path / "m.onnx", w=np.float32([0.5, -0.25]))
    for condition in (True, False):
        wrong, result = misses(
            path, {"x": normal(2), "c": np.array(condition), "n": np.array(3)}, form, keep_io=keep_io
        )
        assert not wrong
        assert not result.islands


def test_boxes_are_the_same(tmp_path, form):
    text = """g (float[1,6,4] boxes, float[1,1,6] scores) => (int64[k,3] kept, float[1,1,2] best, int64[1,1,2] which) {
        kept = NonMaxSuppression (boxes, scores, most, overlap, least)
        best, which = TopK (scores, two)
    }"""
    constants = {"most": np.int64([3]), "overlap": np.float32([0.5]), "least": np.float32([0.1]), "two": np.int64([2])}
    path = onnx_text(text, tmp_path / "m.onnx", **constants)
    corners = np.float32([[i, i, i + 2, i + 2] for i in range(6)])[None]
    feeds = {"boxes": corners, "scores": np.float32([[[0.9, 0.5, 0.75, 0.25, 0.0625, 0.625]]])}
    out, model, result = halved(path, form)
    found, expected = run_half(out, model, feeds, form), run(path, feeds)
    assert np.array_equal(found["kept"], expected["kept"])
    assert np.array_equal(found["which"], expected["which"])
    # TopK takes bfloat16 from opset 24 on only, which few engines read.
    assert {op for _, op, _ in result.islands} == {"NonMaxSuppression", *(["TopK"] if form is BFLOAT16 else [])}


def test_random_and_range_keep_their_types(tmp_path, form):
    text = """g (float[2,3] x) => (float[2,3] y, float[3] r) {
        noise = RandomNormalLike <dtype=1, mean=0.0, scale=0.000001, seed=1.0> (x)
        y = Add (x, noise)
        r = Range (zero, three, one)
    }"""
    constants = {"zero": np.float32(0), "three": np.float32(3), "one": np.float32(1)}
    path = onnx_text(text, tmp_path / "m.onnx", **constants)
    wrong, result = misses(path, {"x": normal(2, 3)}, form)
    assert not wrong
    assert "RandomNormalLike" in {op for _, op, _ in result.islands}


def test_optional_outputs_and_custom_operators_stay_valid(tmp_path, form):
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> g (float[2,4] x) => (float[2,4] y) {
            a = Mul (x, x)  b = com.microsoft.Gelu (a)  y = Dropout (b)
        }"""
    )
    onnx.save(model, tmp_path / "m.onnx")
    wrong, _ = misses(tmp_path / "m.onnx", {"x": normal(2, 4)}, form)
    assert not wrong


def test_one_weight_read_in_both_precisions(tmp_path, form):
    text = """g (float[n,4] x) => (float[n,4] y) { [free] a = MatMul (x, w)  [kept] b = MatMul (a, w)  y = Tanh (b) }"""
    path = onnx_text(text, tmp_path / "m.onnx", w=normal(4, 4))
    wrong, result = misses(path, {"x": normal(3, 4)}, form, exclude=("kept",))
    assert not wrong
    assert [name for name, _, _ in result.islands] == ["kept"]
    stored = {t.name: t.data_type for t in onnx.load(tmp_path / f"m.{form.name}.onnx").graph.initializer}
    assert sorted(stored.values()) == sorted([onnx.TensorProto.FLOAT, int(form.dtype)])
