"""Q/DQ models give what onnxruntime gives without graph optimisation, to the bit, in the form of each system."""

import numpy as np
import onnx
import pytest
from coremltools.converters.mil.mil import types
from onnx import TensorProto, helper, numpy_helper

import deploykit
from deploykit.converters.coreml.inspect import open_package
from deploykit.converters.coreml.origins import tensor_name
from deploykit.converters.coreml.simulator import Interpreter
from deploykit.reference import Reference

RNG = np.random.default_rng(7)
SYSTEMS = ["iOS17", "iOS18", "iOS26"]
WEIGHTS = {"iOS17": "constexpr_affine_dequantize"}


class Quantized:
    """An ONNX graph with Q/DQ, written node by node."""

    def __init__(self, activation="int8", opset=21):
        self.kind, self.opset = np.dtype(activation), opset
        self.nodes, self.constants, self.count = [], [], 0

    def constant(self, array, name=None):
        name = name or self.fresh("c")
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def fresh(self, stem):
        self.count += 1
        return f"{stem}{self.count}"

    def add(self, op, *inputs, **attributes):
        out = self.fresh(op.lower())
        self.nodes.append(helper.make_node(op, list(inputs), [out], name=out, **attributes))
        return out

    def qdq(self, x, scale=0.02):
        zero = np.array(0 if self.kind == np.int8 else 117, self.kind)
        scale, zero = self.constant(np.float32(scale)), self.constant(zero)
        return self.add("DequantizeLinear", self.add("QuantizeLinear", x, scale, zero), scale, zero)

    def weight(self, *shape, axis=0, kind="int8"):
        values = RNG.integers(-127 if kind == "int8" else 0, 128, shape).astype(kind)
        count = () if axis is None else (shape[axis],)
        scale = self.constant(np.asarray(RNG.random(count) * 0.01 + 0.002, np.float32))
        zero = np.zeros(count, kind) if kind == "int8" else RNG.integers(100, 150, count).astype(kind)
        attributes = {} if axis is None else {"axis": axis}
        return self.add("DequantizeLinear", self.constant(values), scale, self.constant(zero), **attributes)

    def bias(self, size):
        values = RNG.integers(-900, 900, size).astype(np.int32)
        scale = (RNG.random(size) * 1e-3 + 1e-4).astype(np.float32)
        return self.add("DequantizeLinear", self.constant(values), self.constant(scale), axis=0)

    def model(self, inputs, output):
        float_in = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
        out = helper.make_empty_tensor_value_info(output)
        out.type.tensor_type.elem_type = TensorProto.FLOAT
        graph = helper.make_graph(self.nodes, "g", float_in, [out], self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10)


def cnn(q):
    x = q.qdq("x")
    x = q.qdq(q.add("Relu", q.add("Conv", x, q.weight(8, 3, 3, 3), q.bias(8), pads=[1, 1, 1, 1])))
    x = q.qdq(q.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]))
    x = q.qdq(q.add("Conv", x, q.weight(8, 1, 3, 3, axis=None), q.bias(8), group=8))
    x = q.qdq(q.add("AveragePool", x, kernel_shape=[2, 2]))
    x = q.qdq(q.add("Flatten", q.qdq(q.add("GlobalAveragePool", x))))
    return {"x": [2, 3, 12, 12]}, q.qdq(q.add("Gemm", x, q.weight(5, 8), q.bias(5), transB=1), 0.003)


def resnet(q):
    x = q.qdq("x")
    y = q.qdq(q.add("Relu", q.add("Conv", x, q.weight(6, 6, 3, 3), q.bias(6), pads=[1, 1, 1, 1])))
    y = q.qdq(q.add("Conv", y, q.weight(6, 6, 3, 3), q.bias(6), pads=[1, 1, 1, 1]), 0.013)
    return {"x": [1, 6, 10, 10]}, q.qdq(q.add("Relu", q.add("Add", y, x)), 0.031)


def attention(q):
    x = q.qdq("x")
    query, key, value = (q.qdq(q.add("MatMul", x, q.weight(16, 16, axis=1)), 0.05) for _ in range(3))
    scores = q.qdq(q.add("MatMul", query, q.add("Transpose", key, perm=[0, 2, 1])), 0.3)
    shares = q.qdq(q.add("Softmax", q.add("Div", scores, q.constant(np.float32(4))), axis=-1), 1 / 127)
    mixed = q.qdq(q.add("MatMul", shares, value), 0.03)
    # The order of a float sum is no matter of quantization: the levels at the end are compared.
    return {"x": [2, 7, 16]}, q.qdq(q.add("Add", q.add("MatMul", mixed, q.weight(16, 16, axis=1)), x), 0.1)


def upsampling(q):
    x = q.qdq("x")
    y = q.add("ConvTranspose", x, q.weight(4, 6, 3, 3, axis=1), q.bias(6), strides=[2, 2], pads=[1, 1, 1, 1])
    return {"x": [1, 4, 6, 6], "z": [1, 2, 11, 11]}, q.qdq(q.add("Concat", q.qdq(y), q.qdq("z"), axis=1))


BLOCKS = {"cnn": cnn, "resnet": resnet, "attention": attention, "upsampling": upsampling}


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("activation", ["int8", "uint8"])
@pytest.mark.parametrize("name", BLOCKS)
def test_w8a8_is_exact(name, activation, system, save, build, evaluate):
    q = Quantized(activation)
    inputs, out = BLOCKS[name](q)
    path = save(q.model(inputs, out))
    feeds = {key: RNG.normal(size=shape).astype(np.float32) for key, shape in inputs.items()}
    result, package = build(path, version=system)
    assert [f["message"] for f in result["findings"] if f["severity"] == "error"] == []
    expected = Reference(path).predict(feeds)[out]
    np.testing.assert_array_equal(evaluate(package, feeds)[out], expected)
    assert np.ptp(expected) > 0.1  # it is not all clipped to one value
    held = result["metrics"]["operators"]
    assert WEIGHTS.get(system, "constexpr_blockwise_shift_scale") in held
    assert {"quantize", "dequantize"} <= set(held)


def test_quantized_activations_need_ios17(save, check):
    q = Quantized()
    inputs, out = resnet(q)
    path = save(q.model(inputs, out))
    rows = [row for row in check(path, version="iOS16")["nodes"] if row["op"] == "QuantizeLinear"]
    assert {row["verdict"] for row in rows} == {"unsupported"}
    assert "iOS17" in rows[0]["reason"]
    assert "minimum_deployment_target=iOS17" in rows[0]["remedy"]
    assert {row["verdict"] for row in check(path)["nodes"]} == {"supported"}


def test_weights_alone_are_for_ios16_too(save, build, evaluate):
    q = Quantized()
    inputs, out = {"x": [3, 16]}, q.add("MatMul", "x", q.weight(16, 8, axis=1, kind="uint8"))
    path = save(q.model(inputs, out))
    feeds = {"x": RNG.normal(size=(3, 16)).astype(np.float32)}
    result, package = build(path, version="iOS16")
    assert "constexpr_affine_dequantize" in result["metrics"]["operators"]
    np.testing.assert_allclose(evaluate(package, feeds)[out], Reference(path).predict(feeds)[out], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shaped", [False, True])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_stored_weights_of_recurrent_layers_become_floats(kind, shaped, save, build, evaluate):
    """Core ML's operators take floats there. The layer behind Q/DQ gives the same levels."""
    q, gates = Quantized(), {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    rows = 5 * gates
    w, r = q.weight(*((rows, 4) if shaped else (1, rows, 4)), axis=None), q.weight(1, rows, 5, axis=1)
    w = q.add("Reshape", w, q.constant(np.int64([1, rows, 4]))) if shaped else w
    out = q.qdq(q.add(kind, q.qdq("x"), w, r, hidden_size=5), 0.01)
    path = save(q.model({"x": [6, 2, 4]}, out))
    feeds = {"x": RNG.normal(size=(6, 2, 4)).astype(np.float32)}
    result, package = build(path)
    assert [f["message"] for f in result["findings"] if f["severity"] == "error"] == []
    expected = Reference(path).predict(feeds)[out]
    np.testing.assert_array_equal(evaluate(package, feeds)[out], expected)
    assert np.ptp(expected) > 0.1


def four_bits(kind, block, rows=64, *, zeros=True, half=False):
    """x [3, rows] times a stored matrix [rows, 8], in blocks of the rows; floats of 16 bits where `half`."""
    low, high = (-8, 8) if kind == TensorProto.INT4 else (0, 16)
    count = -(-rows // block)
    values, offsets = RNG.integers(low, high, (rows, 8)), RNG.integers(low, high, (count, 8))
    float_kind, numpy_kind = (TensorProto.FLOAT16, np.float16) if half else (TensorProto.FLOAT, np.float32)
    scale = numpy_helper.from_array((RNG.random((count, 8)) * 0.1 + 0.01).astype(numpy_kind), "s")
    constants = [helper.make_tensor("w", kind, values.shape, values.reshape(-1).tolist()), scale]
    constants += [helper.make_tensor("z", kind, offsets.shape, offsets.reshape(-1).tolist())] if zeros else []
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", *(["z"] if zeros else [])], ["d"], axis=0, block_size=block),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    doors = (
        [helper.make_tensor_value_info("x", float_kind, [3, rows])],
        [helper.make_tensor_value_info("y", float_kind, [3, 8])],
    )
    graph = helper.make_graph(nodes, "g", *doors, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize(
    ("kind", "block", "rows", "zeros", "half"),
    [
        (TensorProto.UINT4, 32, 64, True, False),
        (TensorProto.INT4, 16, 64, False, False),
        (TensorProto.INT4, 32, 64, True, False),
        (TensorProto.UINT4, 32, 80, True, False),  # the last block is half as long
        (TensorProto.UINT4, 16, 64, True, True),
    ],
)
def test_four_bit_weights_in_blocks(kind, block, rows, zeros, half, save, build, evaluate):
    path = save(four_bits(kind, block, rows, zeros=zeros, half=half))
    feeds = {"x": RNG.normal(size=(3, rows)).astype(np.float16 if half else np.float32)}
    result, package = build(path, version="iOS18")
    assert [f["message"] for f in result["findings"] if f["severity"] == "error"] == []
    close = 4e-3 if half else 1e-6
    expected = Reference(path).predict(feeds)["y"]
    np.testing.assert_allclose(evaluate(package, feeds)["y"], expected, rtol=close, atol=close * np.abs(expected).max())
    constant = next(o for o in open_package(package).function.operations if o.op_type.startswith("constexpr_"))
    name = {TensorProto.INT4: "int4", TensorProto.UINT4: "uint4"}[kind]
    assert types.builtin_to_string(constant.data.dtype) == name
    stored = sum(file.stat().st_size for file in package.rglob("*.bin"))
    assert stored < rows * 8 * (3 if half else 2)  # half a byte a value, scales of 2 or 4, zero points, headers


def test_four_bit_weights_need_ios18(save, build, check):
    path = save(four_bits(TensorProto.UINT4, 32))
    row = next(row for row in check(path)["nodes"] if row["op"] == "DequantizeLinear")
    assert row["verdict"] == "unsupported"
    assert "iOS18" in row["reason"]
    result, package = build(path)
    assert {f["code"] for f in result["findings"] if f["severity"] == "error"} == {"DK526"}
    assert not package.exists()


def test_blocks_that_do_not_come_out_even_are_refused(save, check):
    path = save(four_bits(TensorProto.UINT4, 16, 65))
    row = next(row for row in check(path, version="iOS18")["nodes"] if row["op"] == "DequantizeLinear")
    assert row["verdict"] == "unsupported"
    assert "do not come out even" in row["reason"]


@pytest.mark.parametrize("system", ["iOS17", "iOS18"])
def test_a_published_network_has_the_same_levels(system, shared_model, build, evaluate, tmp_path):
    """Every activation of the quantized network, as integers; the last sum is a float one."""
    path, calib = tmp_path / "int8.onnx", shared_model("digits/digits_cnn_calib.npz")
    deploykit.quantize(
        shared_model("digits/digits_cnn.onnx"), output=path, precision="int8", target="coreml", calib=calib
    )
    data = np.load(calib)
    feeds = {"input": data[next(name for name in data.files if data[name].ndim == 4)][:4].astype(np.float32)}
    model = onnx.load(path)
    levels = [node.output[0] for node in model.graph.node if node.op_type == "QuantizeLinear"]
    model.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.INT8, None) for name in levels)
    onnx.save(model, tmp_path / "levels.onnx")
    expected = Reference(tmp_path / "levels.onnx").predict(feeds)
    result, package = build(path, dims={"N": [1, 4]}, version=system)
    assert result["metrics"]["operators"]["quantize"] > 4
    found = {}
    Interpreter(open_package(package).function, "levels").run(feeds, lambda name, value: found.setdefault(name, value))
    # A reshape between the same levels is done on the integers themselves: its quantize is gone.
    told = [name for name in levels if tensor_name(name) in found]
    assert len(told) >= len(levels) - 1
    for name in told:
        np.testing.assert_array_equal(found[tensor_name(name)], expected[name], err_msg=name)
    logits = evaluate(package, feeds)["logits"]
    np.testing.assert_allclose(logits, expected["logits"], atol=1e-6 * np.abs(expected["logits"]).max())
