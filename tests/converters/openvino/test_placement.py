"""Where Q/DQ stands for OpenVINO: its compiled model computes in integers, without conversions in between."""

import numpy as np
import onnx
import openvino as ov
import pytest
from openvino import properties

from deploykit.data.request import data_request
from deploykit.progress import silent
from deploykit.quantize.settings import Settings
from deploykit.quantize.static import quantize_static
from deploykit.reference import Reference
from deploykit.target import get_target

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def made(source, folder, shape, *, shift=0.0):
    """The INT8 model for OpenVINO, and one of the samples that calibrated it."""
    (folder / "calib").mkdir()
    samples = [{"x": normal(*shape) + np.float32(shift)} for _ in range(8)]
    for index, feeds in enumerate(samples):
        np.savez(folder / "calib" / f"{index}.npz", **feeds)
    settings = Settings(
        scheme=get_target("openvino").scheme, data=data_request(str(folder / "calib"), "calibration"), method="minmax"
    )
    quantize_static(source, folder / "q.onnx", settings, silent)
    return folder / "q.onnx", samples[0]


def pairs(path):
    """Of each QuantizeLinear: what it reads, and the type and zero point of its integers."""
    model = onnx.load(path)
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    nodes = [node for node in model.graph.node if node.op_type == "QuantizeLinear"]
    return {node.input[0]: (constants[node.input[2]].dtype.name, int(constants[node.input[2]])) for node in nodes}


def compiled(path):
    """The model as the CPU plugin runs it, in float32 where it is float."""
    core = ov.Core()
    return core.compile_model(core.read_model(path), "CPU", {properties.hint.inference_precision(): ov.Type.f32})


def layers(model):
    """Types and precisions of the layers that the plugin made, constants left out."""
    found = []
    for operation in model.get_runtime_model().get_ordered_ops():
        facts = {key: value.value if hasattr(value, "value") else value for key, value in operation.rt_info.items()}
        if facts["layerType"] != "Const":
            found.append((facts["layerType"], facts["runtimePrecision"]))
    return found


def sqnr_db(wanted, found):
    noise = np.sum((wanted.astype(np.float64) - found) ** 2)
    return 10 * np.log10(np.sum(wanted.astype(np.float64) ** 2) / max(noise, 1e-300))


def check(path, feeds, least=40):
    """The compiled model, whose outputs are those of the ONNX."""
    model = compiled(path)
    wanted = Reference(path).predict(feeds)
    found = model(feeds)
    for name, array in wanted.items():
        assert sqnr_db(array, found[name]) > least
    return model


def test_a_chain_has_one_pair_for_each_integer_kernel(onnx_file, tmp_path):
    text = """g (float[1,3,16,16] x) => (float[1,4,8,8] y) {
        c = Conv <kernel_shape=[3,3], pads=[1,1,1,1]> (x, w, b)
        r = Relu (c)
        p = MaxPool <kernel_shape=[2,2], strides=[2,2]> (r)
        d = Conv <kernel_shape=[3,3], pads=[1,1,1,1]> (p, v)
        y = HardSigmoid (d)
    }"""
    source = onnx_file(text, w=normal(8, 3, 3, 3), b=normal(8), v=normal(4, 8, 3, 3))
    path, feeds = made(source, tmp_path, (1, 3, 16, 16))
    assert pairs(path).keys() == {"x", "r"}  # none behind the pool, and none behind the last convolution
    types = layers(check(path, feeds))
    assert [precision for kind, precision in types if kind in {"Convolution", "Pooling"}] == ["u8"] * 3
    assert "Convert" not in dict(types)
    assert [kind for kind, _ in types].count("FakeQuantize") <= 1  # of the input


def test_a_value_that_float_nodes_read_too_keeps_its_pair(onnx_file, tmp_path):
    text = """g (float[1,3,8,8] x) => (float[1,4,8,8] y, float[1,64,3] z) {
        t = Reshape (x, flat)
        u = Transpose <perm=[0,2,1]> (t)
        s = Sigmoid (x)
        y = Conv <kernel_shape=[1,1]> (s, w)
        z = Sin (u)
        m = MatMul (u, v)
        n = MatMul (m, v)
    }"""
    text = text.replace("z = Sin (u)", "q = Sin (u)").replace("n = MatMul (m, v)", "n = MatMul (m, v) z = Add (n, q)")
    source = onnx_file(text, w=normal(4, 3, 1, 1), v=normal(3, 3), flat=np.array([1, 3, 64], np.int64))
    path, feeds = made(source, tmp_path, (1, 3, 8, 8))
    assert pairs(path).keys() == {"s", "u", "m"}
    check(path, feeds)


def test_a_zero_point_does_not_go_through_a_concatenation(onnx_file, tmp_path):
    """It would be one for each part there, which the Transpose behind it cannot carry: float kernels follow."""
    text = """g (float[1,9,6] x) => (float[1,5,9] y) {
        a = Sin (x)
        b = Elu (x)
        k = Concat <axis=2> (a, b)
        t = Transpose <perm=[0,2,1]> (k)
        y = Conv <kernel_shape=[3], pads=[1,1]> (t, w)
    }"""
    path, feeds = made(onnx_file(text, w=normal(5, 12, 3)), tmp_path, (1, 9, 6))
    assert pairs(path).keys() == {"t"}
    assert ("Convolution", "u8") in layers(check(path, feeds))


def test_attention_is_computed_in_integers_without_zero_points(onnx_file, tmp_path):
    text = """g (float[1,4,13,32] x) => (float[1,4,13,32] y) {
        q = Sin (x)
        k = Elu (x)
        t = Transpose <perm=[0,1,3,2]> (k)
        s = MatMul (q, t)
        a = Softmax <axis=-1> (s)
        v = Tanh (x)
        y = MatMul (a, v)
    }"""
    path, feeds = made(onnx_file(text), tmp_path, (1, 4, 13, 32))
    assert pairs(path) == {"q": ("int8", 0), "k": ("int8", 0), "a": ("uint8", 0), "v": ("int8", 0)}
    kinds = layers(check(path, feeds))
    assert {precision for kind, precision in kinds if kind == "MatMul"} <= {"u8", "i8"}
    assert {("MatMul", "i8"), ("Subgraph", "i8")} & set(kinds)
    assert "Convert" not in dict(kinds)


def test_a_product_with_constants_keeps_its_zero_point(onnx_file, tmp_path):
    text = "g (float[2,8] x) => (float[2,5] y) { e = Elu (x) m = MatMul (e, w) y = Add (m, b) }"
    path, feeds = made(onnx_file(text, w=normal(8, 5), b=normal(5)), tmp_path, (2, 8))
    ((kind, zero),) = pairs(path).values()
    assert kind == "uint8"
    assert zero > 0
    assert ("FullyConnected", "u8") in layers(check(path, feeds))


@pytest.mark.parametrize("gate", [True, False])
def test_an_average_reads_a_convolution_through_a_pair(onnx_file, tmp_path, gate):
    """OpenVINO 2026.4.1 may scale it twice otherwise, where something else reads the float output too (PP-OCR det)."""
    text = """g (float[1,6,12,15] x) => (float[1,8,12,15] y) {
        c = Conv <kernel_shape=[1,1]> (x, w)
        p = GlobalAveragePool (c)
        s = Conv <kernel_shape=[1,1]> (p, v, b)
        h = HardSigmoid (s)
        y = Mul (c, h)
    }"""
    text = text if gate else text.replace("y = Mul (c, h)", "e = Expand (h, whole) y = Sin (e)")
    whole = {} if gate else {"whole": np.array([1, 8, 12, 15], np.int64)}
    source = onnx_file(text, w=normal(8, 6, 1, 1), v=normal(8, 8, 1, 1), b=normal(8), **whole)
    path, feeds = made(source, tmp_path, (1, 6, 12, 15), shift=0.5)
    assert "c" in pairs(path)
    check(path, feeds)
