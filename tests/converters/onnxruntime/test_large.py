"""A model beyond protobuf's 2 GB: converted, compared with its parent, and optimised ahead of time."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import deploykit
from deploykit import io
from deploykit.converters.onnxruntime.runtime import load
from deploykit.runtime import RuntimeOptions

SIZE = 23_000  # one float32 matrix of 2.1 GB


@pytest.fixture
def model(tmp_path):
    """One MatMul with its weights beside the model: a sparse file with numbers in its first rows."""
    rows = np.random.default_rng(0).normal(size=(8, SIZE)).astype(np.float32)
    with (tmp_path / "w.bin").open("wb") as file:
        file.write(rows.tobytes())
        file.truncate(SIZE * SIZE * 4)
    weight = TensorProto(name="w", dims=[SIZE, SIZE], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": "w.bin", "offset": "0", "length": str(SIZE * SIZE * 4)}.items():
        weight.external_data.add(key=key, value=value)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", SIZE]) for name in "xy")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Identity", ["a"], ["b"]),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [x], [y], [weight])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(made, tmp_path / "m.onnx")
    return tmp_path / "m.onnx", rows


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.parametrize("level", ["none", "basic"])
def test_more_than_two_gigabytes_of_weights_convert(model, tmp_path, level):
    path, rows = model
    out = tmp_path / "out.onnx"
    report = deploykit.convert(
        path, to="onnxruntime", output=out, dims={"n": [1, 2]}, samples=2, options={"optimization": level}
    )
    assert not report.failed
    assert report.artifact.execution == "real"
    assert report.artifact.files == ("out.onnx", "out.onnx.data")
    # Written once, and not appended to what was there.
    assert SIZE * SIZE * 4 <= io.size_of(tmp_path / "out.onnx.data") < SIZE * SIZE * 4 + 2**16
    assert len(onnx.load(out, load_external_data=False).graph.node) == (3 if level == "none" else 2)
    feed = np.random.default_rng(1).normal(size=(1, SIZE)).astype(np.float32)
    expected = np.maximum(feed[:, :8].astype(np.float64) @ rows, 0)
    runtime = load(out, RuntimeOptions())
    np.testing.assert_allclose(runtime.predict({"x": feed})["y"], expected, rtol=1e-4, atol=1e-4)
    runtime.close()
