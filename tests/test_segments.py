import numpy as np
import onnx
import pytest

from deploykit import graph
from deploykit.comparison import compare_job
from deploykit.data.request import data_request
from deploykit.errors import GateError
from deploykit.reference import Reference
from deploykit.segments import cut, quantizers, segments_job

MODEL = """<ir_version: 8, opset_import: ["": 17]> g (float[n,8] x) => (float[n,4] y)
<float third = {0.33333334}, float s = {0.1}, uint8 z = {100}, float sw = {0.02}, int8 zw = {0},
 float[4] bias = {0.3, -0.2, 0.7, 0.1}, float s2 = {0.25}> {
    [scale] m = Mul (x, third)
    [quantize] q = QuantizeLinear (m, s, z)
    [dequantize] d = DequantizeLinear (q, s, z)
    [weights] dw = DequantizeLinear (w, sw, zw)
    [product] p = MatMul (d, dw)
    [shift] b = Add (p, bias)
    [quantize2] q2 = QuantizeLinear (b, s2, z)
    [dequantize2] e = DequantizeLinear (q2, s2, z)
    [last] y = Tanh (e)
}"""


def made(path, text=MODEL):
    model = onnx.parser.parse_model(text)
    weights = np.random.default_rng(0).integers(-127, 128, (8, 4)).astype(np.int8)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(model, path)
    return path


@pytest.fixture
def model(tmp_path):
    return made(tmp_path / "q.onnx")


@pytest.fixture
def data(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.linspace(-27, 45, 320, dtype=np.float32).reshape(2, 20, 8))
    return data_request(str(tmp_path / "x.npz"), "parity")


def changed(model, *pairs):
    text = MODEL
    for before, after in pairs:
        assert before in text
        text = text.replace(before, after)
    return made(model.with_name("changed.onnx"), text)


def test_ties_that_fall_the_other_way_are_right(model, tmp_path):
    # x / 3 and x * 0.33333334 are the last place of a float32 apart, on either side of the border between two levels.
    border = np.array([-5.55, -1.5, -0.9, -0.15, 0.15, 0.9, 1.5, 5.55], np.float32)
    x = np.random.default_rng(1).choice(border, (100, 8))
    np.savez(tmp_path / "ties.npz", x=x[None])
    data = data_request(str(tmp_path / "ties.npz"), "parity")
    other = changed(model, ("Mul (x, third)", "Div (x, three)"), ("float third = {0.33333334}", "float three = {3}"))
    whole = compare_job(str(model), str(other), data)
    assert (whole["row"], whole["outputs"][0]["passed"]) == ("int8-parent", False)
    found = segments_job(str(model), str(other), data)
    assert (found["segments"], found["wrong"], found["faults"]) == (2, 0, [])
    assert found["elements"] == 100 * (8 + 4)
    assert 0.5 <= found["worst"] < 0.501
    assert found["outputs"][0]["passed"]


@pytest.mark.parametrize(
    ("pairs", "tensor", "node"),
    [
        ((("Linear (m, s, z)", "Linear (m, t, z)"), ("float s =", "float t = {0.101}, float s =")), "q", "scale"),
        ((("Linear (q, s, z)", "Linear (q, s, zz)"), ("float s =", "uint8 zz = {101}, float s =")), "q2", "shift"),
        ((("Linear (q, s, z)", "Linear (q, t, z)"), ("float s =", "float t = {0.101}, float s =")), "q2", "shift"),
        ((("{0.3, -0.2", "{0.0, -0.2"),), "q2", "shift"),
        ((("MatMul (d, dw)", "MatMul (m, dw)"),), "q2", "shift"),
    ],
    ids=["scale", "zero point", "scale of what is read", "bias", "not quantized"],
)  # fmt: skip
def test_a_fault_is_found_in_its_segment(model, data, pairs, tensor, node):
    found = segments_job(str(model), str(changed(model, *pairs)), data)
    assert found["wrong"]
    assert found["worst"] > 0.56
    first = found["faults"][0]
    assert first["tensor"] == tensor
    assert first["node"].startswith(f"{node} (")
    # What is behind the fault computes with the integers that the candidate has, and is right.
    assert len(found["faults"]) == 1
    assert found["outputs"][0]["passed"]


def test_a_fault_behind_the_last_integers_is_one_of_the_outputs(model, data):
    found = segments_job(str(model), str(changed(model, ("Tanh (e)", "Sigmoid (e)"))), data)
    assert found["wrong"] == 0
    assert not found["outputs"][0]["passed"]


def test_nan_is_no_level(model, tmp_path):
    np.savez(tmp_path / "nan.npz", x=np.full((1, 1, 8), np.nan, np.float32))
    found = segments_job(str(model), str(model), data_request(str(tmp_path / "nan.npz"), "parity"))
    assert found["faults"][0]["tensor"] == "q"
    assert found["faults"][0]["wrong"] == 8


def test_integers_of_another_shape_are_refused(model, data):
    other = changed(
        model,
        ("q = QuantizeLinear", "before = QuantizeLinear"),
        (
            "[dequantize] d = DequantizeLinear (q,",
            "q = Unsqueeze (before, one) r = Squeeze (q, one) d = DequantizeLinear (r,",
        ),
        ("float s =", "int64[1] one = {0}, float s ="),
    )
    with pytest.raises(GateError, match=r"'q' has shape \[1, 20, 8\] in the engine, \[20, 8\] in the model"):
        segments_job(str(model), str(other), data)


def test_an_artifact_without_these_integers_has_no_segments(model, data):
    other = changed(model, ("q =", "levels ="), ("(q,", "(levels,"), ("q2 =", "more ="), ("(q2,", "(more,"))
    assert segments_job(str(model), str(other), data)["segments"] == 0


OTHERS = """<ir_version: 9, opset_import: ["": 19]> g (float[4,4] x, float given) => (float[4,4] y, uint8[4,4] out)
<float s = {0.1}, float[4] each = {0.1, 0.2, 0.3, 0.4}, uint8[4] zeros = {0, 0, 0, 0}, uint8 z = {3}> {
    kept = QuantizeLinear (x, s)
    a = DequantizeLinear (kept, s)
    per_channel = QuantizeLinear (a, each, zeros)
    b = DequantizeLinear (per_channel, each, zeros)
    dynamic = QuantizeLinear (b, given, z)
    c = DequantizeLinear (dynamic, given, z)
    out = QuantizeLinear (c, s, z)
    y = DequantizeLinear (out, s, z)
}"""


def test_only_what_can_be_told_is_cut(tmp_path):
    onnx.save(onnx.parser.parse_model(OTHERS), tmp_path / "m.onnx")
    loaded = graph.load(tmp_path / "m.onnx")
    assert [node.outputs[0].name for node in quantizers(loaded)] == ["kept"]
    assert [one.tensor for one in cut(loaded, {"kept", "out", "dynamic"})] == ["kept"]
    graph.save(loaded, tmp_path / "cut.onnx")
    levels = np.arange(16, dtype=np.uint8).reshape(4, 4)
    feeds = {"x": np.float32(0.1) * levels.astype(np.float32), "given": np.float32(1)}
    levels[1, 1] -= 1
    found = Reference(tmp_path / "cut.onnx").predict({**feeds, "kept/given": levels})
    assert found["kept/wrong"] == 1
    assert found["kept/worst"] == pytest.approx(1)
