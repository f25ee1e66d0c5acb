"""What is in a model, in numbers."""

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from deploykit import graph
from deploykit.graph import inventory

HEAD = '<ir_version: 10, opset_import: ["" : 21], producer_name: "tool", producer_version: "1.2">\n'


def parsed(text, **weights):
    model = onnx.parser.parse_model(HEAD + text)
    for name, array in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return ir.from_proto(model)


def test_summary_of_a_small_network():
    model = parsed(
        """g (float[batch,3,8,8] x) => (float[batch,10] y) <int64[2] to = {-1, 256}> {
            c = Conv <pads=[1,1,1,1]> (x, w, b)
            r = Relu(c)
            f = Reshape(r, to)
            y = Gemm <transB=1> (f, g)
        }""",
        w=np.ones((4, 3, 3, 3), np.float32),
        b=np.ones(4, np.float32),
        g=np.ones((10, 256), np.float32),
    )
    facts = graph.summary(model, {"batch": 2})
    conv, gemm = 2 * 4 * 8 * 8 * 27, 2 * 10 * 256
    assert facts["macs"] == conv + gemm
    assert facts["macs_by_op"] == {"Conv": conv, "Gemm": gemm}
    assert facts["macs_dims"] == {"batch": 2}
    assert facts["parameters"] == 108 + 4 + 2560
    assert facts["initializer_bytes"] == 4 * (108 + 4 + 2560) + 16
    assert facts["operators"] == {"Conv": 1, "Gemm": 1, "Relu": 1, "Reshape": 1}
    assert facts["dynamic_dims"] == {"x": ["batch"]}
    assert facts["domains"] == {"ai.onnx": 21}
    assert facts["producer"] == "tool 1.2"
    assert facts["quantization"]["quantized"] is False
    assert facts["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["batch", 3, 8, 8]}]


QDQ = """g (float[1,8] x) => (float[1,8] y) <float s = {1}, int8 z = {0}> {
    q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)
    v = DequantizeLinear(w, s, z)
    t = Transpose <perm=[1,0]> (v)
    a = MatMul(d, t)
    b = MatMul(a, f)
    c = MatMul(b, t)
    y = Identity(c)
}"""


def test_quantized_share():
    weights = {"w": np.ones((8, 8), np.int8), "f": np.ones((8, 8), np.float32)}
    model = parsed(QDQ, **weights)
    assert graph.quantization(model) == {
        "quantized": True,
        "nodes": 1,
        "weight_only_nodes": 1,
        "float_nodes": 1,
        "macs_share": pytest.approx(1 / 3, abs=1e-6),
    }
    assert graph.summary(model)["parameters"] == 128  # scale and zero point are none


def test_integer_operators_count_as_quantized():
    model = parsed(
        """g (uint8[1,2,6,6] x) => (uint8[1,4,4,4] y) <float s = {1}, uint8 z = {0}> {
            y = QLinearConv(x, s, z, w, s, z, s, z, b)
        }""",
        w=np.ones((4, 2, 3, 3), np.uint8),
        b=np.ones(4, np.int32),
    )
    facts = graph.summary(model)
    assert facts["quantization"]["macs_share"] == 1.0
    assert facts["parameters"] == 72 + 4


def test_constants_count_and_shapes_do_not():
    model = parsed("""g (float[2,3] x) => (float[6] y) {
        w = Constant <value = float[3] {1, 2, 3}> ()
        to = Constant <value = int64[1] {6}> ()
        a = Mul(x, w)
        y = Reshape(a, to)
    }""")
    assert [tensor.size for tensor in inventory.weights(model)] == [3]


def test_the_model_is_not_changed():
    model = parsed(QDQ, w=np.ones((8, 8), np.int8), f=np.ones((8, 8), np.float32))
    before = ir.to_proto(model).SerializeToString()
    graph.summary(model)
    assert ir.to_proto(model).SerializeToString() == before
