import numpy as np
import onnx
import onnxruntime as ort
import pytest
from quantize_models import onnx_text, operators, run, sqnr_db

from deploykit.quantize import slices
from deploykit.quantize.dynamic import quantize_dynamic
from deploykit.quantize.settings import Settings
from deploykit.target import QuantizationScheme

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def made(path, **settings):
    """The quantized model beside `path`, its facts, and its operators in all graphs."""
    out = path.with_name("dynamic.onnx")
    facts = quantize_dynamic(path, out, Settings(**settings), lambda _: None)
    onnx.checker.check_model(str(out), full_check=True)
    return out, facts, operators(onnx.load(out).graph)


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ("y = MatMul (x, w)", {"w": (48, 24)}),
        ("y = Gemm (x, w, b)", {"w": (48, 24), "b": (24,)}),
        ("y = Gemm <transB = 1> (x, w)", {"w": (24, 48)}),
        ("y = Gemm <transB = 1, alpha = -0.5, beta = 3.0> (x, w, b)", {"w": (24, 48), "b": (24,)}),
        ("y = Gemm <alpha = 2.0, beta = 0.0> (x, w, b)", {"w": (48, 24), "b": (1, 24)}),
        ("t = Transpose <perm = [1, 0]> (x)\n y = Gemm <transA = 1> (t, w, b)", {"w": (48, 24), "b": (24,)}),
    ],
)
def test_products_are_close_to_float(tmp_path, text, weights, optimize):
    values = {name: normal(*shape) for name, shape in weights.items()}
    path = onnx_text(f"g (float[n,48] x) => (float[n,24] y) {{ {text} }}", tmp_path / "m.onnx", **values)
    out, facts, ops = made(path)
    assert ops.count("MatMulInteger") == 1
    assert not {"MatMul", "Gemm"} & set(ops)
    assert facts["metrics"]["int8_macs_share"] == 1.0
    feeds = {"x": normal(7, 48)}
    assert sqnr_db(run(path, feeds)["y"], run(out, feeds, optimize=optimize)["y"]) > 33


@pytest.mark.parametrize("optimize", [True, False])
def test_weights_of_several_matrices(tmp_path, optimize):
    path = onnx_text(
        "g (float[2,3,48] x) => (float[2,3,24] y) { y = MatMul (x, w) }", tmp_path / "m.onnx", w=normal(2, 48, 24)
    )
    out, _, ops = made(path)
    assert "MatMulInteger" in ops
    feeds = {"x": normal(2, 3, 48)}
    assert sqnr_db(run(path, feeds)["y"], run(out, feeds, optimize=optimize)["y"]) > 33


def test_columns_of_very_different_size_have_a_scale_each(tmp_path):
    weight = normal(64, 16) * np.logspace(-3, 3, 16, dtype=np.float32)
    path = onnx_text("g (float[n,64] x) => (float[n,16] y) { y = MatMul (x, w) }", tmp_path / "m.onnx", w=weight)
    out, _, _ = made(path)
    feeds = {"x": normal(32, 64)}
    expected, found = run(path, feeds)["y"], run(out, feeds)["y"]
    assert min(sqnr_db(expected[:, i], found[:, i]) for i in range(16)) > 30


def test_readers_of_one_activation_quantize_it_once_and_of_one_weight_store_it_once(tmp_path):
    text = """g (float[n,48] x) => (float[n,48] y, float[n,48] z, float[n,48] k) {
        [first] y = MatMul (x, w)
        [second] z = MatMul (x, v)
        [third] k = MatMul (y, w)
    }"""
    path = onnx_text(text, tmp_path / "m.onnx", w=normal(48, 48), v=normal(48, 48))
    out, facts, ops = made(path)
    assert ops.count("DynamicQuantizeLinear") == 2  # x, and y which is an output too
    model = onnx.load(out)
    assert sum(tensor.data_type == onnx.TensorProto.INT8 for tensor in model.graph.initializer) == 2
    assert [value.name for value in model.graph.output] == ["y", "z", "k"]
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "n"
    assert facts["metrics"]["quantized_nodes"] == 3
    feeds = {"x": normal(5, 48)}
    expected, found = run(path, feeds), run(out, feeds)
    assert all(sqnr_db(expected[name], found[name]) > 33 for name in expected)


def test_bodies_of_if_and_loop(tmp_path):
    text = """g (bool c, float[4,32] x, int64 n) => (float[4,32] y, float[4,32] z) {
        y = If (c) <
            then_branch = one () => (float[4,32] a) { [left] a = MatMul (x, w) },
            else_branch = two () => (float[4,32] b) { [right] t = MatMul (x, w)
                b = Neg (t) }
        >
        go = Constant <value = bool {1}> ()
        z = Loop (n, go, x) <
            body = step (int64 i, bool g, float[4,32] s) => (bool h, float[4,32] r) {
                h = Identity (g)
                [inner] r = MatMul (s, v)
            }
        >
    }"""
    weights = {"w": normal(32, 32), "v": normal(32, 32) / 6}
    path = onnx_text(text, tmp_path / "m.onnx", **weights)
    out, facts, ops = made(path)
    assert facts["metrics"]["quantized_nodes"] == 3
    assert ops.count("MatMulInteger") == 3
    for condition in (True, False):
        feeds = {"c": np.array(condition), "x": normal(4, 32), "n": np.array(3)}
        expected, found = run(path, feeds), run(out, feeds)
        assert sqnr_db(expected["y"], found["y"]) > 33
        assert sqnr_db(expected["z"], found["z"]) > 28


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_lstm(tmp_path, direction):
    count = 2 if direction == "bidirectional" else 1
    text = f"""g (float[t,b,24] x, int32[b] lengths) => (float[t,{count},b,40] y, float[{count},b,40] h) {{
        y, h = LSTM <hidden_size = 40, direction = "{direction}"> (x, w, r, bias, lengths)
    }}"""
    weights = {"w": (count, 160, 24), "r": (count, 160, 40), "bias": (count, 320)}
    values = {name: normal(*shape) / 4 for name, shape in weights.items()}
    path = onnx_text(text, tmp_path / "m.onnx", **values)
    out, facts, ops = made(path)
    assert "DynamicQuantizeLSTM" in ops
    assert facts["metrics"]["quantized_nodes"] == 1
    feeds = {"x": normal(9, 3, 24), "lengths": np.array([9, 4, 7], np.int32)}
    expected, found = run(path, feeds), run(out, feeds)
    assert {name: value.shape for name, value in found.items()} == {
        name: value.shape for name, value in expected.items()
    }
    assert min(sqnr_db(expected[name], found[name]) for name in expected) > 28


def test_what_stays_float_says_why(tmp_path):
    text = """g (float[1,8,9,9] i, float[n,32] x, float[32,32] k, float[t,1,16] s) =>
        (float[1,8,9,9] a, float[n,32] b, float[n,2] d, float[t,1,1,32] e, float[n,32] f) {
        [conv] a = Conv <pads = [1,1,1,1]> (i, w)
        [computed] b = MatMul (x, k)
        [tiny] d = MatMul (x, u)
        [gru] e = GRU <hidden_size = 32> (s, wg, rg)
        [asked] f = MatMul (x, v)
    }"""
    weights = {"w": (8, 8, 3, 3), "u": (32, 2), "wg": (1, 96, 16), "rg": (1, 96, 32), "v": (32, 32)}
    path = onnx_text(text, tmp_path / "m.onnx", **{name: normal(*shape) for name, shape in weights.items()})
    _, facts, _ = made(path, exclude=("asked",))
    said = {item["node"]: item["message"] for item in facts["findings"] if item["code"] == "DK355"}
    assert "ConvInteger" in said["conv"]
    assert "no weight" in said["computed"]
    assert "64 elements" in said["tiny"]
    assert "GRU" in said["gru"]
    assert "excluded" in said["asked"]
    assert facts["metrics"]["quantized_nodes"] == 0
    assert "DK390" in {item["code"] for item in facts["findings"]}


def pair_sums(values, summed):
    """The largest positive and the largest negative sum that two neighbours along the summed axis can add up to."""
    moved = np.moveaxis(values, summed, -1).astype(np.int32)
    if moved.shape[-1] < 2:
        return 0, 0
    even = moved.shape[-1] // 2 * 2
    first, second = moved[..., 0:even:2], moved[..., 1:even:2]
    return (np.maximum(first, 0) + np.maximum(second, 0)).max(), (np.minimum(first, 0) + np.minimum(second, 0)).min()


@pytest.mark.parametrize("shape", [(64, 16), (7, 5), (2, 33, 8), (1, 4)])
def test_no_pair_of_products_saturates(shape):
    for seed in range(20):
        weight = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
        weight[..., 0] = np.abs(weight).max()  # a column of equal weights is the worst case
        found = slices.to_int8(weight, len(shape) - 1, summed=len(shape) - 2)
        up, down = pair_sums(found.values, len(shape) - 2)
        assert 255 * up <= 32767
        assert 255 * down >= -32768
        assert np.abs(found.dequantized() - weight).max() <= 1.51 * found.scale.max()


def test_a_weight_in_slices_is_the_weight_in_one(monkeypatch):
    weight = normal(50, 30)
    whole = [
        slices.to_int8(weight, axis, summed=summed)
        for axis in (0, 1, None)
        for summed in (None, 0, 1)
        if axis != summed
    ]
    monkeypatch.setattr(slices, "SLICE", 64)
    parts = [
        slices.to_int8(weight, axis, summed=summed)
        for axis in (0, 1, None)
        for summed in (None, 0, 1)
        if axis != summed
    ]
    for one, other in zip(whole, parts, strict=True):
        assert np.array_equal(one.values, other.values)
        assert np.array_equal(one.scale, other.scale)


def test_scales_that_never_saturate_lose_less_than_seven_bits():
    weight = normal(256, 64)
    seven = np.abs(weight).max(axis=0) / 64
    rounded = np.clip(np.rint(weight / seven), -64, 64) * seven
    narrow, whole = (slices.to_int8(weight, 1, summed=summed).dequantized() for summed in (0, None))
    assert sqnr_db(weight, rounded) + 2 < sqnr_db(weight, narrow) < sqnr_db(weight, whole)


def test_at_least_as_accurate_as_onnxruntime(shared_model, spectrum, tmp_path):
    from onnxruntime.quantization import quantize_dynamic as theirs

    source = shared_model("nsnet2/nsnet2-20ms-baseline.onnx")
    quantize_dynamic(source, tmp_path / "ours.onnx", Settings(), lambda _: None)
    quantize_dynamic(
        source, tmp_path / "whole.onnx", Settings(scheme=QuantizationScheme(reduce_range=False)), lambda _: None
    )
    theirs(str(source), str(tmp_path / "theirs.onnx"))
    theirs(str(source), str(tmp_path / "channels.onnx"), per_channel=True)
    reference = run(source, {"input": spectrum})["output"]
    found = {
        name: sqnr_db(reference, run(tmp_path / f"{name}.onnx", {"input": spectrum})["output"])
        for name in ("ours", "whole", "theirs", "channels")
    }
    print("nsnet2, dynamic INT8, dB:", {name: round(value, 1) for name, value in found.items()})
    assert found["ours"] > found["theirs"]
    assert found["whole"] > found["channels"] - 0.05  # the same integers, but for the order of a sum


def test_silero_whose_layers_are_all_in_bodies(shared_model, tmp_path):
    """onnxruntime's own quantize_dynamic quantizes none of its nodes: they are inside the branches of an If."""
    source = shared_model("silero_vad/silero_vad.onnx")
    sound = np.load(shared_model("silero_vad/vad_stream_dev.npz"))["x"].astype(np.float32) / 32768
    out = tmp_path / "out.onnx"
    facts = quantize_dynamic(source, out, Settings(), lambda _: None)
    assert facts["metrics"]["quantized_nodes"] == 4
    assert out.stat().st_size < 0.85 * source.stat().st_size
    speech = []
    for path in (source, out):
        session, state, found = (
            ort.InferenceSession(path, providers=["CPUExecutionProvider"]),
            np.zeros((2, 1, 128)),
            [],
        )
        for start in range(448, 448 + 200 * 512, 512):
            feeds = {
                "input": sound[None, start : start + 576],
                "sr": np.array(16000),
                "state": state.astype(np.float32),
            }
            probability, state = session.run(["output", "stateN"], feeds)
            found.append(probability.item())
        speech.append(np.array(found))
    quality = sqnr_db(*speech)
    print(f"silero, 200 frames with state carried on, dynamic INT8: {quality:.1f} dB")
    assert quality > 30
