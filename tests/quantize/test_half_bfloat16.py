"""bfloat16: the same rules as float16, in an engine that computes it; onnx's reference evaluator is the judge."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from half_models import halved, misses, run_half
from onnx import version_converter
from onnx.reference import ReferenceEvaluator
from quantize_models import onnx_text, run

from deploykit import graph, lazy
from deploykit.errors import ModelError
from deploykit.quantize import half_engine
from deploykit.quantize.half_engine import RoundingRuntime, about_kernels, open_bfloat16
from deploykit.quantize.half_formats import BFLOAT16, FLOAT16
from deploykit.quantize.half_opset import load_for_half

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


MODELS = {
    "dense": ("g (float[n,4] x) => (float[n,4] y) { a = MatMul (x, w)  y = Softmax (a) }", {"w": (4, 4)}, (3, 4)),
    "convolution": (
        """g (float[1,3,8,8] x) => (float[1,2,3,3] y) {
            c = Conv (x, w, b)  r = Relu (c)  y = MaxPool <kernel_shape=[2,2], strides=[2,2]> (r)
        }""",
        {"w": (2, 3, 3, 3), "b": (2,)},
        (1, 3, 8, 8),
    ),
    "normalization": (
        """g (float[n,4] x) => (float[n,4] y) {
            a = LayerNormalization (x, w)  b = Gemm <transB=1> (a, v)  y = Tanh (b)
        }""",
        {"w": (4,), "v": (4, 4)},
        (3, 4),
    ),
    "branches": (
        """g (float[2,2] x) => (float[2,2] y) {
            a = ReduceSum (x)  zero = Sub (a, a)  c = Greater (a, zero)
            y = If (c) < then_branch = t () => (float[2,2] ty) { ty = Mul (x, w) },
                         else_branch = e () => (float[2,2] ey) { ey = Exp (x) } >
        }""",
        {"w": (2, 2)},
        (2, 2),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_bfloat16_models_are_valid_and_close_to_float(tmp_path, name):
    text, weights, shape = MODELS[name]
    path = onnx_text(text, tmp_path / "m.onnx", **{key: normal(*size) for key, size in weights.items()})
    wrong, result = misses(path, {"x": normal(*shape)}, BFLOAT16)
    assert not wrong
    assert not result.islands
    assert graph.describe(tmp_path / "m.bf16.onnx").precision == "bf16"


@pytest.mark.parametrize("name", ["dense", "convolution"])
def test_what_runs_bfloat16_agrees_with_the_reference_evaluator_of_onnx(tmp_path, name):
    text, weights, shape = MODELS[name]
    path = onnx_text(text, tmp_path / "m.onnx", **{key: normal(*size) for key, size in weights.items()})
    out, _, _ = halved(path, BFLOAT16)
    x = normal(*shape).astype(BFLOAT16.array)
    expected = ReferenceEvaluator(str(out)).run(None, {"x": x})[0].astype(np.float32)
    runtime, _ = open_bfloat16(out)
    rounding = RoundingRuntime(out)
    assert runtime is not None
    for engine in (runtime, rounding):
        found = engine.predict({"x": x})["y"]
        assert found.dtype == BFLOAT16.array
        assert np.abs(found.astype(np.float32) - expected).max() <= 3 * 2**-8 * np.abs(expected).max()
        engine.close()


@pytest.mark.skipif(not lazy.installed("openvino"), reason="needs OpenVINO")
def test_openvino_executes_bfloat16_where_the_cpu_does(tmp_path):
    import openvino

    text, weights, shape = MODELS["dense"]
    path = onnx_text(text, tmp_path / "m.onnx", **{key: normal(*size) for key, size in weights.items()})
    out, _, _ = halved(path, BFLOAT16)
    runtime, said = open_bfloat16(out)
    able = "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    assert runtime.execution == ("real" if able else "simulated")
    assert [finding.code for finding in said] == ([] if able else ["DK316"])
    told = about_kernels(runtime, {"x": normal(*shape).astype(BFLOAT16.array)})
    assert not able or "1 of 1 kernels" in told[0].message
    runtime.close()


def test_without_openvino_rounding_is_simulated_and_said(tmp_path, monkeypatch):
    monkeypatch.setattr(half_engine.lazy, "installed", lambda name: False)
    text, weights, _ = MODELS["dense"]
    path = onnx_text(text, tmp_path / "m.onnx", **{key: normal(*size) for key, size in weights.items()})
    out, _, _ = halved(path, BFLOAT16)
    runtime, said = open_bfloat16(out)
    assert runtime.execution == "simulated"
    assert [finding.code for finding in said] == ["DK316"]
    assert "deploykit[openvino]" in said[0].hint
    assert "onnxruntime" in runtime.engine
    runtime.close()


@pytest.mark.parametrize(("opset", "raised"), [(9, 22), (13, 22), (17, 22), (22, 22)])
def test_the_opset_is_raised_to_where_convolutions_take_bfloat16(tmp_path, opset, raised):
    text = "g (float[1,1,4,4] x) => (float[1,1,2,2] y) { y = Conv (x, w) }"
    path = onnx_text(text, tmp_path / "m.onnx", opset=opset, w=normal(1, 1, 3, 3))
    model, said = load_for_half(path, BFLOAT16)
    assert graph.opset(model) == raised
    assert [finding.code for finding in said] == (["DK352"] if raised > opset else [])
    assert graph.opset(load_for_half(path, FLOAT16)[0]) == opset
    assert np.array_equal(
        model.graph.initializers["w"].const_value.numpy(),
        onnx.numpy_helper.to_array(onnx.load(path).graph.initializer[0]),
    )


def test_a_model_without_need_keeps_its_opset(tmp_path):
    path = onnx_text(
        "g (float[n,4] x) => (float[n,4] y) { y = MatMul (x, w) }", tmp_path / "m.onnx", opset=13, w=normal(4, 4)
    )
    model, said = load_for_half(path, BFLOAT16)
    assert graph.opset(model) == 13
    assert not said


def test_an_opset_that_cannot_be_raised_is_one_clear_error(tmp_path, monkeypatch):
    def refuse(*_):
        raise RuntimeError("no adapter")

    monkeypatch.setattr(version_converter, "convert_version", refuse)
    path = onnx_text(
        "g (float[1,1,4,4] x) => (float[1,1,2,2] y) { y = Conv (x, w) }", tmp_path / "m.onnx", w=normal(1, 1, 3, 3)
    )
    with pytest.raises(ModelError) as caught:
        load_for_half(path, BFLOAT16)
    assert caught.value.code == "DK351"


def test_positions_stay_exact_beyond_256(tmp_path):
    text = """g (float[n,1] x) => (int64[1] rows) {
        shape = Shape <start=0, end=1> (x)
        f = Cast <to=1> (shape)
        doubled = Mul (f, two)
        rows = Cast <to=7> (doubled)
    }"""
    path = onnx_text(text, tmp_path / "m.onnx", two=np.float32([2]))
    out, model, _ = halved(path, BFLOAT16)
    feeds = {"x": np.zeros((1023, 1), np.float32)}
    assert run_half(out, model, feeds, BFLOAT16)["rows"] == run(path, feeds)["rows"] == 2046


@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3)])
def test_recurrent_layers(tmp_path, op, gates):
    text = f"g (float[3,2,4] x) => (float[3,1,2,5] y) {{ y = {op} <hidden_size=5> (x, w, r, b) }}"
    weights = {"w": normal(1, gates * 5, 4) / 2, "r": normal(1, gates * 5, 5) / 2, "b": normal(1, gates * 10) / 2}
    path = onnx_text(text, tmp_path / "m.onnx", **weights)
    wrong, result = misses(path, {"x": normal(3, 2, 4)}, BFLOAT16)
    assert not wrong
    assert not result.islands


def test_weights_are_rounded_to_nearest(tmp_path):
    values = np.float32([[1.0 + 2**-9, 1.0 + 3 * 2**-9], [1e-3, 3.0e38]])
    path = onnx_text("g (float[n,2] x) => (float[n,2] y) { y = MatMul (x, w) }", tmp_path / "m.onnx", w=values)
    _, model, _ = halved(path, BFLOAT16)
    found = model.graph.initializers["w"]
    assert found.dtype == ir.DataType.BFLOAT16
    assert found.const_value.numpy().astype(np.float32)[0].tolist() == [1.0, 1.0 + 2**-7]


def test_a_model_that_nothing_here_runs_is_said_to_be_unproven(tmp_path, monkeypatch):
    def refuse(*_):
        raise ModelError("no kernel", code="DK201")

    monkeypatch.setattr(half_engine, "RoundingRuntime", refuse)
    monkeypatch.setattr(half_engine.lazy, "installed", lambda name: False)
    runtime, said = open_bfloat16(tmp_path / "m.onnx")
    assert runtime is None
    assert [(finding.code, finding.severity) for finding in said] == [("DK316", "warning")]
