import numpy as np
import onnx
import pytest
from quantize_models import onnx_text, operators, run, sqnr_db

from deploykit.data.request import data_request
from deploykit.errors import UsageError
from deploykit.quantize import hessians
from deploykit.quantize.hessians import Tap, passes
from deploykit.quantize.int4 import quantize_int4
from deploykit.quantize.settings import Settings

RNG = np.random.default_rng(0)
SQUARE = "g (float[n,64] x) => (float[n,64] y) { y = MatMul (x, w) }"
OBLONG = "g (float[n,96] x) => (float[n,64] y) { y = MatMul (x, w) }"
TARGETS = ["onnxruntime", "openvino", "tensorrt-rtx"]


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def made(path, target="onnxruntime", **settings):
    """The quantized model beside `path`, its facts, and its operators in all graphs."""
    out = path.with_name(f"int4-{target}.onnx")
    facts = quantize_int4(path, out, Settings(target=target, **settings), lambda _: None)
    onnx.checker.check_model(str(out), full_check=True)
    return out, facts, operators(onnx.load(out).graph)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("y = MatMul (x, w)", {"w": (96, 64)}),
        ("y = Gemm (x, w, b)", {"w": (96, 64), "b": (64,)}),
        ("y = Gemm <transB = 1, alpha = -0.5, beta = 3.0> (x, w, b)", {"w": (64, 96), "b": (64,)}),
        ("t = Transpose <perm = [1, 0]> (x)\n y = Gemm <transA = 1> (t, w)", {"w": (96, 64)}),
    ],
)
def test_products(tmp_path, text, shapes, optimize, target):
    weights = {name: normal(*shape) for name, shape in shapes.items()}
    path = onnx_text(f"g (float[n,96] x) => (float[n,64] y) {{ {text} }}", tmp_path / "m.onnx", **weights)
    out, facts, ops = made(path, target)
    assert ("MatMulNBits" in ops) == (target == "onnxruntime")
    assert ("DequantizeLinear" in ops) == (target != "onnxruntime")
    assert out.stat().st_size < path.stat().st_size / 3
    assert facts["metrics"]["bits"] == 4
    assert facts["metrics"]["block_size"] == 32
    assert facts["metrics"]["method"] == "rtn"
    feeds = {"x": normal(7, 96)}
    assert sqnr_db(run(path, feeds)["y"], run(out, feeds, optimize=optimize)["y"]) > 17


def test_types_by_target(tmp_path):
    path = onnx_text(
        "g (float[n,64] x) => (float[n,64] y) { y = MatMul (x, w) }", tmp_path / "m.onnx", w=normal(64, 64)
    )
    kinds = {}
    for target in TARGETS:
        out, facts, _ = made(path, target)
        tensors = onnx.load(out).graph.initializer
        kinds[target] = {onnx.TensorProto.DataType.Name(tensor.data_type) for tensor in tensors}
        assert (facts["opset"] >= 21) == (target != "onnxruntime")
    assert kinds["onnxruntime"] == {"UINT8", "FLOAT"}
    assert kinds["openvino"] == {"UINT4", "FLOAT"}
    assert kinds["tensorrt-rtx"] == {"INT4", "FLOAT"}


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_tables_and_convolutions(tmp_path, target):
    text = """g (int64[n] i, float[1,64,5,7] c) => (float[n,96] y, float[1,32,3,4] z) {
        [table] y = Gather (t, i)
        [pointwise] z = Conv <strides = [2, 2]> (c, w, b)
    }"""
    weights = {"t": normal(200, 96), "w": normal(32, 64, 1, 1), "b": normal(32)}
    path = onnx_text(text, tmp_path / "m.onnx", opset=21, **weights)
    out, facts, ops = made(path, target)
    assert facts["metrics"]["quantized_nodes"] == 2
    assert ("GatherBlockQuantized" in ops) == (target == "onnxruntime")
    feeds = {"i": np.array([0, 199, 7, 7]), "c": normal(1, 64, 5, 7)}
    expected, found = run(path, feeds), run(out, feeds)
    assert min(sqnr_db(expected[name], found[name]) for name in expected) > 17
    assert found["y"].shape == (4, 96)


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_bodies_and_shared_weights(tmp_path, target):
    text = """g (bool c, float[4,64] x) => (float[4,64] y, float[4,64] z) {
        y = If (c) <
            then_branch = one () => (float[4,64] a) { [left] a = MatMul (x, w) },
            else_branch = two () => (float[4,64] b) { [right] t = MatMul (x, w)
                b = Neg (t) }
        >
        [outer] z = MatMul (x, w)
    }"""
    path = onnx_text(text, tmp_path / "m.onnx", w=normal(64, 64))
    out, facts, _ = made(path, target)
    assert facts["metrics"]["quantized_nodes"] == 3
    assert out.stat().st_size < path.stat().st_size / 3  # one set of integers
    for condition in (True, False):
        feeds = {"c": np.array(condition), "x": normal(4, 64)}
        expected, found = run(path, feeds), run(out, feeds)
        assert min(sqnr_db(expected[name], found[name]) for name in expected) > 17


def test_what_stays_float_says_why(tmp_path):
    text = """g (float[n,88] x, float[88,80] k, float[1,8,9,9] i, float[t,1,64] s) =>
        (float[n,64] a, float[n,80] b, float[1,8,9,9] c, float[t,1,1,64] d, float[n,16] e) {
        [odd] a = MatMul (x, w)
        [computed] b = MatMul (x, k)
        [kernel] c = Conv <pads = [1,1,1,1]> (i, v)
        [lstm] d = LSTM <hidden_size = 64> (s, wl, rl)
        [small] e = MatMul (x, u)
    }"""
    shapes = {"w": (88, 64), "v": (8, 8, 3, 3), "wl": (1, 256, 64), "rl": (1, 256, 64), "u": (88, 16)}
    path = onnx_text(text, tmp_path / "m.onnx", **{name: normal(*shape) for name, shape in shapes.items()})
    _, facts, _ = made(path, "openvino", exclude=("small",))
    said = {item["node"]: item["message"] for item in facts["findings"] if item["code"] == "DK355"}
    assert "88 columns are no multiple" in said["odd"]
    assert "no weight" in said["computed"]
    assert "1x1" in said["kernel"]
    assert "int8-weights" in said["lstm"]
    assert "excluded" in said["small"]
    assert "DK392" in {item["code"] for item in facts["findings"]}
    _, facts, _ = made(path)
    assert facts["metrics"]["quantized_nodes"] == 2  # onnxruntime's kernel takes rests of blocks


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"block_size": 48}, "DK343"),
        ({"block_size": 1}, "DK343"),
        ({"method": "gptq"}, "DK391"),
        ({"method": "hqq", "target": "openvino"}, "DK391"),
    ],
)
def test_refusals(tmp_path, settings, code):
    path = onnx_text(
        "g (float[n,64] x) => (float[n,64] y) { y = MatMul (x, w) }", tmp_path / "m.onnx", w=normal(64, 64)
    )
    with pytest.raises(UsageError) as caught:
        made(path, **settings)
    assert caught.value.code == code
    assert not list(tmp_path.glob("int4-*"))


def calibration(tmp_path, count=12, rows=40):
    folder = tmp_path / "calib"
    folder.mkdir()
    mixing = normal(12, 96)
    for index in range(count):
        np.savez(folder / f"{index:02d}.npz", x=normal(rows, 12) @ mixing + 0.1 * normal(rows, 96))
    return folder, lambda: normal(200, 12) @ mixing + 0.1 * normal(200, 96)


@pytest.mark.parametrize("target", TARGETS)
def test_auto_is_gptq_with_data_and_beats_rounding_to_nearest(tmp_path, target):
    text = """g (float[n,96] x) => (float[n,48] y) {
        h = Gemm <transB = 1> (x, w)
        r = Relu (h)
        y = MatMul (r, v)
    }"""
    path = onnx_text(text, tmp_path / "m.onnx", w=normal(128, 96), v=normal(128, 48))
    folder, draw = calibration(tmp_path)
    feeds = {"x": draw().astype(np.float32)}
    expected = run(path, feeds)["y"]
    quality = {}
    for method in ("auto", "rtn"):
        out, facts, _ = made(path, target, method=method, data=data_request(str(folder), "calibration"))
        quality[facts["metrics"]["method"]] = sqnr_db(expected, run(out, feeds)["y"])
    assert facts["metrics"]["calibration"] is None
    assert quality["gptq"] > quality["rtn"] + 2


def test_half_quadratic_with_onnxruntime(tmp_path):
    path = onnx_text(
        "g (float[n,96] x) => (float[n,64] y) { y = MatMul (x, w) }", tmp_path / "m.onnx", w=normal(96, 64)
    )
    pytest.importorskip("torch")
    out, facts, ops = made(path, method="hqq")
    assert "MatMulNBits" in ops
    assert "DK394" in {item["code"] for item in facts["findings"]}
    feeds = {"x": normal(7, 96)}
    assert sqnr_db(run(path, feeds)["y"], run(out, feeds)["y"]) > 17


def test_the_hessians_are_sums_over_all_vectors_in_several_passes(tmp_path, monkeypatch):
    from deploykit.quantize.prepare import load_float

    path = onnx_text(
        "g (float[n,96] x) => (float[n,48] y) { h = MatMul (x, w)\n y = MatMul (h, v) }",
        tmp_path / "m.onnx",
        w=normal(96, 64),
        v=normal(64, 48),
    )
    folder, _ = calibration(tmp_path, count=5)
    taps = [Tap("x", 96), Tap("h", 64)]
    assert passes(taps) == [taps]
    monkeypatch.setattr(hessians, "BUDGET", 96 * 96 * 4)
    assert passes(taps) == [taps[:1], taps[1:]]
    model, _ = load_float(path)
    settings = Settings(data=data_request(str(folder), "calibration"))
    found = list(hessians.stream(model, taps, path, settings, lambda _: None))
    data = np.concatenate([np.load(file)["x"] for file in sorted(folder.iterdir())])
    inner = data @ onnx.numpy_helper.to_array(onnx.load(path).graph.initializer[0])
    assert np.allclose(found[0].matrices[taps[0]], data.T @ data, rtol=1e-3, atol=1e-2)
    assert np.allclose(found[1].matrices[taps[1]], inner.T @ inner, rtol=1e-3, atol=1)
    assert [one.samples for one in found] == [5, 5]
    assert found[0].vectors[taps[0]] == 200


def test_too_little_data_is_said(tmp_path):
    path = onnx_text(
        "g (float[n,96] x) => (float[n,64] y) { y = MatMul (x, w) }", tmp_path / "m.onnx", w=normal(96, 64)
    )
    folder, _ = calibration(tmp_path, count=2, rows=10)
    _, facts, _ = made(path, data=data_request(str(folder), "calibration"))
    said = next(item for item in facts["findings"] if item["code"] == "DK393")
    assert "'x' 20 for 96" in said["message"]


def test_a_row_that_is_no_multiple_takes_the_next_smaller_block(tmp_path):
    path = onnx_text(
        "g (float[n,80] x) => (float[n,64] y) { y = MatMul (x, w) }", tmp_path / "m.onnx", w=normal(80, 64)
    )
    out, facts, _ = made(path, "openvino", block_size=128)
    assert facts["metrics"]["quantized_nodes"] == 1
    node = next(node for node in onnx.load(out).graph.node if node.op_type == "DequantizeLinear")
    assert {attribute.name: attribute.i for attribute in node.attribute} == {"axis": 0, "block_size": 16}
    feeds = {"x": normal(7, 80)}
    assert sqnr_db(run(path, feeds)["y"], run(out, feeds)["y"]) > 17


def test_recurrent_weights_that_stay_float_are_not_copied(tmp_path):
    """Two layers that take gates of one constant in orders of their own: computed once each, they would be two."""
    text = """g (float[t,1,64] s) => (float[t,1,1,64] a, float[t,1,1,64] b) {
        front = Slice (w, zero, half, one)
        back = Slice (w, half, all, one)
        other = Concat <axis = 1> (back, front)
        same = Concat <axis = 1> (front, back)
        a = LSTM <hidden_size = 64> (s, other, r)
        b = LSTM <hidden_size = 64> (s, same, r)
    }"""
    ends = {
        name: np.array([number], np.int64) for name, number in {"zero": 0, "half": 128, "all": 256, "one": 1}.items()
    }
    path = onnx_text(text, tmp_path / "m.onnx", w=normal(1, 256, 64), r=normal(1, 256, 64), **ends)
    out, facts, _ = made(path)
    assert "DK392" in {item["code"] for item in facts["findings"]}
    assert out.stat().st_size < path.stat().st_size * 1.02
