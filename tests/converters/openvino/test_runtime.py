import ml_dtypes
import numpy as np
import onnxruntime as ort
import pytest

import deploykit
from deploykit import graph
from deploykit.converters.openvino.convert import convert_job
from deploykit.converters.openvino.runtime import load, properties
from deploykit.errors import ModelError, UnavailableError
from deploykit.runtime import RuntimeOptions, open_runtime

ATTENTION = """agraph (float[N,4,12,16] q, float[N,4,12,16] k, float[N,4,12,16] v) => (float[N,4,12,16] y) {
    [turn] t = Transpose <perm = [0,1,3,2]> (k)
    [scores] s = MatMul (q, t)
    [soft] p = Softmax (s)
    [mix] y = MatMul (p, v)
}"""
LSTM = """agraph (float[T,B,5] x) => (float[T,1,B,6] y) {
    [lstm] y = LSTM <hidden_size = 6> (x, w, r)
}"""


def values(*shape):
    return np.random.default_rng(3).normal(size=shape).astype(np.float32)


def converted(model, folder, **dims):
    convert_job(str(model), str(folder / "m.xml"), {}, dims, {}, "fp32")
    return folder / "m.xml"


def reference(path, feeds):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))


def assert_equal_outputs(model, ir, feeds, rtol=1e-5, atol=1e-6):
    found, expected = open_runtime(ir).predict(feeds), reference(model, feeds)
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_allclose(found[name], array, rtol=rtol, atol=atol)


def test_runs_like_onnx_runtime_in_float32(onnx_file, tmp_path):
    model = onnx_file(LSTM, w=values(1, 24, 5), r=values(1, 24, 6))
    assert_equal_outputs(model, converted(model, tmp_path), {"x": values(7, 2, 5)})


def test_exact_asks_for_float32_where_the_engine_would_take_bfloat16():
    assert properties(RuntimeOptions(), "CPU")["INFERENCE_PRECISION_HINT"] == "f32"
    assert "INFERENCE_PRECISION_HINT" not in properties(RuntimeOptions(exact=False), "CPU")


def test_exact_keeps_float_activations_beside_int8_weights(onnx_file, tmp_path):
    model = onnx_file(
        """agraph (float[N,256] x) => (float[N,64] y) {
            wd = DequantizeLinear <axis = 1> (w, s, z) y = MatMul (x, wd)
        }""",
        w=np.random.default_rng(2).integers(-127, 128, (256, 64)).astype(np.int8),
        s=np.full(64, 0.01, np.float32),
        z=np.zeros(64, np.int8),
    )
    assert_equal_outputs(model, converted(model, tmp_path), {"x": values(4, 256)}, rtol=1e-4, atol=1e-4)


def test_threads_are_passed_on():
    assert properties(RuntimeOptions(threads=2), "CPU")["INFERENCE_NUM_THREADS"] == 2


def test_scalars_booleans_and_integers_keep_rank_and_type(onnx_file, tmp_path):
    model = onnx_file(
        """agraph (int64 n, bool[2] b, uint8[2] u) => (int64 m, bool[2] c, uint8[2] w) {
            m = Add (n, n) c = Not (b) w = Identity (u)
        }"""
    )
    feeds = {"n": np.array(21), "b": np.array([True, False]), "u": np.array([1, 255], np.uint8)}
    assert_equal_outputs(model, converted(model, tmp_path), feeds)


def test_bfloat16_goes_in_and_comes_out(onnx_file, tmp_path):
    model = onnx_file("agraph (bfloat16[N] x) => (bfloat16[N] y) { y = Identity (x) }")
    x = np.array([0.5, -3.0], ml_dtypes.bfloat16)
    y = open_runtime(converted(model, tmp_path)).predict({"x": x})["y"]
    assert y.dtype == ml_dtypes.bfloat16
    assert y.tolist() == x.tolist()


def test_outputs_do_not_change_with_the_next_call(onnx_file, tmp_path):
    runtime = open_runtime(converted(onnx_file("agraph (float[2] x) => (float[2] y) { y = Neg (x) }"), tmp_path))
    first = runtime.predict({"x": np.ones(2, np.float32)})["y"]
    runtime.predict({"x": np.zeros(2, np.float32)})
    assert first.tolist() == [-1, -1]


def test_kernels_of_a_qdq_model_are_int8(int8_conv, tmp_path):
    kernels = open_runtime(converted(int8_conv, tmp_path)).kernels({"x": values(3, 4, 8, 8)})
    working = [k for k in kernels if k.macs]
    assert [(k.op, k.precision, k.macs) for k in working] == [("Convolution", "int8", 3 * 10 * 64 * 4 * 9)]
    assert "conv" in working[0].nodes


def test_kernels_of_a_float_model_are_float32(onnx_file, tmp_path):
    model = onnx_file("agraph (float[N,8] x) => (float[N,6] y) { [mm] y = MatMul (x, w) }", w=values(8, 6))
    kernels = open_runtime(converted(model, tmp_path)).kernels({"x": values(5, 8)})
    assert [(k.precision, k.macs) for k in kernels if k.macs] == [("fp32", 5 * 8 * 6)]


@pytest.mark.parametrize(
    ("text", "arrays", "feeds", "dims"),
    [
        (ATTENTION, {}, dict.fromkeys("qkv", (2, 4, 12, 16)), {"N": 2}),
        (LSTM, {"w": (1, 24, 5), "r": (1, 24, 6)}, {"x": (7, 2, 5)}, {"T": 7, "B": 2}),
    ],
)
def test_kernels_count_the_work_that_the_graph_has(onnx_file, tmp_path, text, arrays, feeds, dims):
    model = onnx_file(text, **{name: values(*shape) for name, shape in arrays.items()})
    kernels = open_runtime(converted(model, tmp_path)).kernels({n: values(*s) for n, s in feeds.items()})
    assert sum(k.macs for k in kernels) == sum(graph.macs(graph.load(model), dims).values())


def test_device_that_is_not_here_is_refused_with_those_that_are(onnx_file, tmp_path):
    ir = converted(onnx_file("agraph (float[2] x) => (float[2] y) { y = Neg (x) }"), tmp_path)
    with pytest.raises(UnavailableError, match="NPU") as caught:
        load(ir, RuntimeOptions(device="npu"))
    assert caught.value.code == "DK222"
    assert "CPU" in caught.value.context[0]


def test_missing_weights_and_other_files_are_refused_by_name(onnx_file, tmp_path):
    model = onnx_file("agraph (float[N,8] x) => (float[N,6] y) { y = MatMul (x, w) }", w=values(8, 6))
    ir = converted(model, tmp_path)
    ir.with_suffix(".bin").unlink()
    with pytest.raises(ModelError, match=r"m\.bin is missing") as caught:
        open_runtime(ir)
    assert caught.value.code == "DK203"
    ir.with_suffix(".bin").write_bytes(b"x")
    ir.write_text("<svg/>", encoding="utf-8")
    with pytest.raises(ModelError) as caught:
        open_runtime(ir)
    assert caught.value.code == "DK202"


def test_digits_quantized_for_this_target_run_in_int8_kernels_and_stay_accurate(shared_model, tmp_path):
    model = shared_model("digits/digits_cnn.onnx")
    deploykit.quantize(
        model,
        output=tmp_path / "int8.onnx",
        precision="int8",
        target="openvino",
        calib=str(shared_model("digits/digits_cnn_calib.npz")),
    )
    runtime = open_runtime(converted(tmp_path / "int8.onnx", tmp_path))
    with np.load(shared_model("digits/digits_cnn_test.npz")) as data:
        images, labels = data["x"], data["y"]
    found = runtime.predict({"input": images})["logits"].argmax(1)
    expected = load(model, RuntimeOptions()).predict({"input": images})["logits"].argmax(1)
    assert np.mean(found == labels) >= np.mean(expected == labels) - 0.005
    kernels = runtime.kernels({"input": images[:8]})
    total = sum(k.macs for k in kernels)
    assert sum(k.macs for k in kernels if k.precision == "int8") / total >= 0.9
    assert total == sum(graph.macs(graph.load(model), {"N": 8}).values())
