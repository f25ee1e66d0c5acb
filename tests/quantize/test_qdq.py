import numpy as np
import onnxruntime as ort
import pytest
from quantize_models import AFFINE, SYMMETRIC, onnx_text, quantized, run, sqnr_db

from deploykit.quantize.findings import about_saturation
from deploykit.quantize.qdq import activation_parameters
from deploykit.quantize.thresholds import Interval
from deploykit.target import QuantizationScheme

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def kernels(path) -> list[str]:
    """Operators that onnxruntime runs after its own fusions."""
    import onnx

    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(path.with_suffix(".optimized.onnx"))
    ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return [node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node]


def test_symmetric_parameters():
    found = activation_parameters(Interval(-0.5, 2.54), SYMMETRIC)
    assert found.zero_point.dtype == np.int8
    assert found.zero_point == 0
    assert found.step == pytest.approx(2.54 / 127)


def test_affine_parameters_hold_zero_exactly():
    found = activation_parameters(Interval(-1.0, 3.0), AFFINE)
    assert found.zero_point.dtype == np.uint8
    assert found.step == pytest.approx(4 / 255)
    assert found.zero_point == round(255 / 4)
    after_relu = activation_parameters(Interval(0.0, 6.0), AFFINE)
    assert after_relu.zero_point == 0


def test_a_tensor_of_zeros_has_scale_one():
    assert activation_parameters(Interval(0.0, 0.0), AFFINE).step == 1.0


CNN = """g (float[n,3,8,8] x) => (float[n,4] y) {
    [c1] a = Conv <pads=[1,1,1,1]> (x, w1, b1)
    [r1] b = Relu (a)
    [pool] c = MaxPool <kernel_shape=[2,2], strides=[2,2]> (b)
    [c2] d = Conv <pads=[1,1,1,1]> (c, w2)
    [r2] e = Relu (d)
    [flat] f = Flatten (e)
    [fc] y = Gemm <transB=1> (f, w3, b3)
}"""


@pytest.fixture
def cnn(tmp_path):
    weights = {
        "w1": normal(6, 3, 3, 3),
        "b1": normal(6),
        "w2": normal(5, 6, 3, 3),
        "w3": normal(4, 80),
        "b3": normal(4),
    }
    return onnx_text(CNN, tmp_path / "cnn.onnx", **weights)


@pytest.mark.parametrize("scheme", [SYMMETRIC, AFFINE])
def test_quantized_cnn_is_close_to_float(cnn, scheme):
    feeds = [{"x": normal(1, 3, 8, 8)} for _ in range(8)]
    found = quantized(cnn, feeds, scheme)
    x = {"x": normal(4, 3, 8, 8)}
    assert sqnr_db(run(cnn, x, optimize=False)["y"], run(found.path, x)["y"]) > 30


def test_onnxruntime_runs_the_affine_cnn_in_integer_kernels_only(cnn):
    found = quantized(cnn, [{"x": normal(1, 3, 8, 8)}], AFFINE)
    ops = kernels(found.path)
    assert "Conv" not in ops
    assert "Gemm" not in ops
    assert ops.count("QLinearConv") == 2
    assert ops.count("QGemm") == 1
    assert "DequantizeLinear" not in ops


def test_qdq_stands_behind_the_relu_and_around_the_pool_with_one_scale(cnn):
    found = quantized(cnn, [{"x": normal(1, 3, 8, 8)}])
    assert found.producer_of("r1", 0).op_type == "Conv"
    before, after = found.producer_of("pool", 0), found.producer_of("c2", 0)
    assert before.op_type == after.op_type == "DequantizeLinear"
    assert before.inputs[1] is after.inputs[1]
    assert found.producer_of("fc", 0).op_type == "DequantizeLinear"
    assert found.model.graph.outputs[0].producer().op_type == "Gemm"


def test_symmetric_scheme_has_zero_points_of_zero_and_float_biases(cnn):
    found = quantized(cnn, [{"x": normal(1, 3, 8, 8)}])
    for node in found.nodes("QuantizeLinear") + found.nodes("DequantizeLinear"):
        zero = node.inputs[2].const_value.numpy()
        assert zero.dtype == np.int8
        assert not zero.any()
    assert next(node for node in found.model.graph if node.name == "c1").inputs[2].is_initializer()


def test_convtranspose_with_groups_has_axis_1_and_keeps_every_channel(tmp_path):
    weight = normal(4, 3, 3, 3) * np.float32([0.001, 1, 100])[None, :, None, None]
    path = onnx_text(
        "g (float[1,4,5,5] x) => (float[1,6,7,7] y) { [t] y = ConvTranspose <group=2> (x, w, b) }",
        tmp_path / "t.onnx",
        w=weight,
        b=normal(6),
    )
    feeds = {"x": normal(1, 4, 5, 5)}
    found = quantized(path, [feeds], AFFINE)
    dequantize = found.producer_of("t", 1)
    assert dequantize.attributes.get_int("axis") == 1
    assert dequantize.inputs[1].const_value.size == 3
    assert found.producer_of("t", 2).inputs[1].const_value.size == 6
    reference, result = run(path, feeds)["y"], run(found.path, feeds)["y"]
    assert min(sqnr_db(reference[:, c], result[:, c]) for c in range(6)) > 20


def test_gemm_with_alpha_keeps_its_bias_in_float(tmp_path):
    text = "g (float[n,4] x) => (float[n,3] y) { [fc] y = Gemm <alpha=0.5> (x, w, b) }"
    path = onnx_text(text, tmp_path / "m.onnx", w=normal(4, 3), b=normal(3))
    feeds = {"x": normal(8, 4)}
    found = quantized(path, [feeds], AFFINE)
    assert next(node for node in found.model.graph if node.name == "fc").inputs[2].name == "b"
    assert sqnr_db(run(path, feeds)["y"], run(found.path, feeds)["y"]) > 25


def test_a_weight_shared_by_two_layouts_is_stored_for_each_axis(tmp_path):
    text = """g (float[n,4] x) => (float[n,4] y) {
        [one] a = MatMul (x, w)
        [two] b = Gemm <transB=1> (a, w)
        [three] y = MatMul (b, w)
    }"""
    path = onnx_text(text, tmp_path / "m.onnx", w=normal(4, 4))
    feeds = {"x": normal(8, 4)}
    found = quantized(path, [feeds])
    axes = {name: found.producer_of(name, 1).attributes.get_int("axis") for name in ("one", "two", "three")}
    assert axes == {"one": 1, "two": 0, "three": 1}
    assert found.producer_of("one", 1) is found.producer_of("three", 1)
    assert sqnr_db(run(path, feeds)["y"], run(found.path, feeds)["y"]) > 25


def test_two_computed_operands(tmp_path):
    text = """g (float[1,5,8] q, float[1,8,5] k) => (float[1,5,5] y) {
        [mm] s = MatMul (q, k)
        [soft] y = Softmax (s)
    }"""
    path = onnx_text(text, tmp_path / "m.onnx")
    feeds = {"q": normal(1, 5, 8), "k": normal(1, 8, 5)}
    found = quantized(path, [feeds], AFFINE)
    assert [found.producer_of("mm", index).op_type for index in (0, 1)] == ["DequantizeLinear"] * 2
    assert sqnr_db(run(path, feeds)["y"], run(found.path, feeds)["y"]) > 25


RESIDUAL = """g (float[1,4,6,6] x) => (float[1,4,6,6] y) {
    [c1] a = Conv <pads=[1,1,1,1]> (x, w1)
    [r1] b = Relu (a)
    [c2] c = Conv <pads=[1,1,1,1]> (b, w2)
    [add] d = Add (c, b)
    [r2] e = Relu (d)
    [c3] y = Conv (e, w3)
}"""


@pytest.mark.parametrize("residual", [True, False])
def test_residual_inputs_have_qdq_where_the_scheme_wants_it(tmp_path, residual):
    path = onnx_text(RESIDUAL, tmp_path / "m.onnx", w1=normal(4, 4, 3, 3), w2=normal(4, 4, 3, 3), w3=normal(4, 4, 1, 1))
    feeds = {"x": normal(1, 4, 6, 6)}
    found = quantized(path, [feeds], QuantizationScheme(quantize_residual=residual))
    assert found.producer_of("add", 0).op_type == "DequantizeLinear"
    assert found.producer_of("add", 1).op_type == "DequantizeLinear"
    assert found.producer_of("r2", 0).op_type == "Add"
    assert sqnr_db(run(path, feeds)["y"], run(found.path, feeds)["y"]) > 25


def test_residual_stream_of_a_transformer_stays_float(tmp_path):
    text = """g (float[1,5,8] x) => (float[1,5,8] y) {
        [mm] a = MatMul (x, w)
        [add] b = Add (a, x)
        [mm2] y = MatMul (b, w)
    }"""
    path = onnx_text(text, tmp_path / "m.onnx", w=normal(8, 8))
    found = quantized(path, [{"x": normal(1, 5, 8)}], AFFINE)
    add = next(node for node in found.model.graph if node.name == "add")
    assert add.inputs[0].producer().op_type == "MatMul"
    assert add.inputs[1].name == "x"


def test_post_processing_head_stays_float(tmp_path):
    text = """g (float[1,3,8,8] x) => (float[1,8,6,6] y) {
        [c] a = Conv (x, w)
        [s] b = Sigmoid (a)
        [m] c2 = Mul (a, size)
        [cat] y = Concat <axis=1> (b, c2)
    }"""
    path = onnx_text(text, tmp_path / "m.onnx", w=normal(4, 3, 3, 3), size=np.float32([640.0]))
    found = quantized(path, [{"x": normal(1, 3, 8, 8)}], AFFINE)
    assert len(found.nodes("QuantizeLinear")) == 1
    assert found.producer_of("s", 0).op_type == "Conv"


def test_an_output_that_is_also_read_stays_float(tmp_path):
    text = """g (float[1,3,8,8] x) => (float[1,4,6,6] a, float[1,2,4,4] y) {
        [c1] a = Conv (x, w1)
        [c2] y = Conv (a, w2)
    }"""
    path = onnx_text(text, tmp_path / "m.onnx", w1=normal(4, 3, 3, 3), w2=normal(2, 4, 3, 3))
    found = quantized(path, [{"x": normal(1, 3, 8, 8)}])
    assert [output.name for output in found.model.graph.outputs] == ["a", "y"]
    assert found.model.graph.outputs[0].producer().op_type == "Conv"
    assert found.producer_of("c2", 0).op_type == "DequantizeLinear"


def test_concat_shares_the_scale_of_the_widest_input(tmp_path):
    text = """g (float[1,3,6,6] x) => (float[1,2,6,6] y) {
        [c1] a = Conv (x, w1)
        [c2] b = Conv (x, w2)
        [cat] c = Concat <axis=1> (a, b)
        [c3] y = Conv (c, w3)
    }"""
    path = onnx_text(
        text, tmp_path / "m.onnx", w1=normal(2, 3, 1, 1), w2=10 * normal(2, 3, 1, 1), w3=normal(2, 4, 1, 1)
    )
    found = quantized(path, [{"x": normal(1, 3, 6, 6)}])
    scales = {
        float(found.producer_of(n, i).inputs[1].const_value.numpy()) for n, i in (("cat", 0), ("cat", 1), ("c3", 0))
    }
    assert len(scales) == 1
    widest = max(abs(found.ranges.tensors["c"].minimum), abs(found.ranges.tensors["c"].maximum))
    assert scales.pop() == pytest.approx(widest / 127)


def test_bytes_are_the_same_each_time(cnn):
    feeds = [{"x": np.ones((1, 3, 8, 8), np.float32)}]
    first = quantized(cnn, feeds, AFFINE).path.read_bytes()
    assert quantized(cnn, feeds, AFFINE).path.read_bytes() == first


def emulate_int16_pairs(activation: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """u8 [K] times s8 [K, N] as CPUs without VNNI do it: sums of two neighbours saturate at int16 (pmaddubsw)."""
    products = activation.astype(np.int32)[:, None] * weight.astype(np.int32)
    pairs = np.clip(products[0::2] + products[1::2], -(2**15), 2**15 - 1)
    return pairs.sum(axis=0)


@pytest.mark.parametrize("reduce_range", [True, False])
def test_saturation_is_found_exactly_where_the_emulation_shows_it(tmp_path, reduce_range):
    text = "g (float[n,64] x) => (float[n,8] y) { [mm] y = MatMul (x, w) }"
    path = onnx_text(text, tmp_path / "m.onnx", w=np.ones((64, 8), np.float32))
    scheme = QuantizationScheme("uint8", symmetric_activations=False, reduce_range=reduce_range)
    found = quantized(path, [{"x": np.ones((1, 64), np.float32)}], scheme)
    weight = found.producer_of("mm", 1).inputs[0].const_value.numpy()
    full = np.full(64, 255)
    exact = full @ weight.astype(np.int32)
    error = np.abs(emulate_int16_pairs(full, weight) - exact).max() / exact.max()
    assert (error > 0.02) == (not reduce_range)
    assert set(found.saturating) == (set() if reduce_range else {"mm"})
    said = about_saturation(found.saturating)
    assert [finding.node for finding in said] == ([] if reduce_range else ["mm"])


@pytest.mark.parametrize("scheme", [AFFINE, SYMMETRIC], ids=["affine", "symmetric"])
def test_a_stack_of_matrices_runs(tmp_path, scheme):
    path = onnx_text(
        "g (float[3,4,32] x) => (float[3,4,16] y) { y = MatMul (x, w) }", tmp_path / "m.onnx", w=normal(3, 32, 16)
    )
    feeds = {"x": normal(3, 4, 32)}
    found = quantized(path, [feeds], scheme)
    assert sqnr_db(run(path, feeds)["y"], run(found.path, feeds)["y"]) > 30
