import ml_dtypes
import numpy as np
import onnxruntime as ort
import pytest

import deploykit
from deploykit import graph
from deploykit.converters.onnxruntime.providers import Provider
from deploykit.converters.onnxruntime.runtime import load, open_session, session_options
from deploykit.errors import GateError, ModelError, UnavailableError
from deploykit.runtime import RuntimeOptions, open_runtime

CONV = """agraph (float[N,3,8,8] x) => (float[N,10] y) {
    [conv] c = Conv <pads = [1,1,1,1]> (x, w)
    [relu] r = Relu (c)
    [mean] m = GlobalAveragePool (r)
    [flat] f = Flatten (m)
    [gemm] y = Gemm <transB = 1> (f, g)
}"""


def weights(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.fixture
def conv(onnx_file):
    return onnx_file(CONV, w=weights(10, 3, 3, 3), g=weights(10, 10))


def unoptimised(path, feeds):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]).run(None, feeds)


def test_runs_like_the_unoptimised_engine_and_names_its_tensors(conv):
    runtime = load(conv, RuntimeOptions(threads=1))
    feeds = {"x": weights(2, 3, 8, 8)}
    np.testing.assert_allclose(runtime.predict(feeds)["y"], unoptimised(conv, feeds)[0], rtol=1e-5, atol=1e-6)
    assert [(s.name, s.dtype, s.shape) for s in runtime.inputs] == [("x", "float32", ("N", 3, 8, 8))]
    assert [(s.name, s.dtype, s.shape) for s in runtime.outputs] == [("y", "float32", ("N", 10))]
    assert runtime.engine == f"onnxruntime {ort.__version__} (CPUExecutionProvider)"
    assert runtime.execution == "real"


def test_bfloat16_goes_in_and_comes_out_although_numpy_has_none(onnx_file):
    path = onnx_file("agraph (bfloat16[N] x) => (bfloat16[N] y) { y = Identity (x) }")
    x = np.array([0.5, -3.0, 1e30], ml_dtypes.bfloat16)
    y = load(path, RuntimeOptions()).predict({"x": x})["y"]
    assert y.dtype == ml_dtypes.bfloat16
    assert y.tolist() == x.tolist()


def test_provider_that_is_not_built_in_is_refused_with_those_that_are(conv):
    with pytest.raises(UnavailableError, match="'tensorrt'") as caught:
        load(conv, RuntimeOptions(provider="tensorrt"))
    assert caught.value.code == "DK220"
    assert "CPUExecutionProvider" in caught.value.context[0]


def test_device_without_a_provider_is_refused(conv):
    with pytest.raises(UnavailableError, match="--device npu"):
        load(conv, RuntimeOptions(device="npu"))


def test_provider_is_found_by_its_short_name(conv):
    assert load(conv, RuntimeOptions(provider="cpu")).engine.endswith("(CPUExecutionProvider)")


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_silent_fall_back_to_another_provider_is_an_error(conv):
    with pytest.raises(UnavailableError) as caught:
        open_session(conv, session_options(RuntimeOptions()), Provider("CUDAExecutionProvider"))
    assert caught.value.code == "DK221"


def test_operator_without_a_kernel_is_a_failed_gate_and_a_contradiction_a_broken_model(onnx_file):
    unknown = onnx_file("agraph (float[2] x) => (float[2] y) { [odd] y = my.ops.Odd (x) }")
    with pytest.raises(GateError, match=r"my\.ops:Odd"):
        load(unknown, RuntimeOptions())
    broken = onnx_file("agraph (float[1,2] x) => (float[1,2] y) { [mm] y = MatMul (x, w) }", w=weights(3, 3))
    with pytest.raises(ModelError, match=r"Node \(mm\)") as caught:
        load(broken, RuntimeOptions())
    assert caught.value.code == "DK202"


def test_kernels_of_a_float_model_count_the_work_without_padded_channels(conv):
    kernels = load(conv, RuntimeOptions()).kernels({"x": weights(2, 3, 8, 8)})
    assert sum(k.macs for k in kernels) == sum(graph.macs(graph.load(conv), {"N": 2}).values())
    work = {node: k for k in kernels for node in k.nodes}
    assert work["conv"].precision == work["gemm"].precision == "fp32"
    assert work["conv"] is work["relu"]  # fused
    assert set(work) == {"conv", "relu", "mean", "flat", "gemm"}
    assert all(k.microseconds is not None for k in kernels)


def test_kernels_of_a_qdq_model_are_int8(int8_conv):
    kernels = load(int8_conv, RuntimeOptions()).kernels({"x": weights(3, 4, 8, 8)})
    working = [k for k in kernels if k.macs]
    assert [(k.op, k.precision, k.macs) for k in working] == [("QLinearConv", "int8", 3 * 10 * 64 * 4 * 9)]
    assert {"conv", "relu", "dw", "db"} <= set(working[0].nodes) | {n for k in kernels for n in k.nodes}


def test_kernels_of_a_float16_model_say_that_the_cpu_computes_in_float32(onnx_file):
    path = onnx_file(
        "agraph (float16[1,3,8,8] x) => (float16[1,10,8,8] y) { [conv] y = Conv <pads = [1,1,1,1]> (x, w) }",
        w=weights(10, 3, 3, 3).astype(np.float16),
    )
    kernels = load(path, RuntimeOptions()).kernels({"x": weights(1, 3, 8, 8).astype(np.float16)})
    assert [k.precision for k in kernels if k.macs] == ["fp32"]
    assert [k.op for k in kernels].count("Cast") == 2


def test_kernels_in_a_loop_are_summed_over_its_steps(onnx_file):
    path = onnx_file(
        """agraph (int64 n, float[2,2] x) => (float[2,2] y) {
            go = Constant <value = bool {1}> ()
            [loop] y = Loop <body = body (int64 i, bool c, float[2,2] s) => (bool d, float[2,2] t) {
                d = Identity (c)
                [mm] t = MatMul (s, w)
            }> (n, go, x)
        }""",
        w=weights(2, 2),
    )
    kernels = load(path, RuntimeOptions()).kernels({"n": np.array(5), "x": weights(2, 2)})
    found = {k.op: k for k in kernels}
    assert found["MatMul"].macs == 5 * 8
    assert found["Loop"].microseconds is None  # its time is its body's


def test_digits_quantized_for_this_target_run_in_int8_kernels_and_stay_accurate(shared_model, tmp_path):
    model = shared_model("digits/digits_cnn.onnx")
    deploykit.quantize(
        model,
        output=tmp_path / "int8.onnx",
        precision="int8",
        target="onnxruntime",
        calib=str(shared_model("digits/digits_cnn_calib.npz")),
    )
    runtime = open_runtime(tmp_path / "int8.onnx")
    with np.load(shared_model("digits/digits_cnn_test.npz")) as data:
        images, labels = data["x"], data["y"]
    found = runtime.predict({"input": images})["logits"].argmax(1)
    expected = load(model, RuntimeOptions()).predict({"input": images})["logits"].argmax(1)
    assert np.mean(found == labels) >= np.mean(expected == labels) - 0.005
    kernels = runtime.kernels({"input": images[:8]})
    total = sum(k.macs for k in kernels)
    assert sum(k.macs for k in kernels if k.precision == "int8") / total >= 0.9
    assert total == sum(graph.macs(graph.load(model), {"N": 8}).values())
