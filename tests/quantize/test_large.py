"""Models beyond protobuf's 2 GB calibrate (microsoft/onnxruntime#11072, #7017, #17098)."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from quantize_models import ranges_of

from deploykit.quantize.prepare import load_float

SIZE = 23_000


@pytest.fixture
def model(tmp_path):
    """One MatMul with 2.1 GB of weights beside the model: a sparse file with numbers in its first rows."""
    rows = np.random.default_rng(0).normal(size=(8, SIZE)).astype(np.float32)
    with (tmp_path / "w.bin").open("wb") as file:
        file.write(rows.tobytes())
        file.truncate(SIZE * SIZE * 4)
    weight = TensorProto(name="w", dims=[SIZE, SIZE], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": "w.bin", "offset": "0", "length": str(SIZE * SIZE * 4)}.items():
        weight.external_data.add(key=key, value=value)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", SIZE]) for name in "xy")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    graph = helper.make_graph(nodes, "g", [x], [y], [weight])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(made, tmp_path / "m.onnx")
    return tmp_path / "m.onnx", rows


@pytest.mark.slow
@pytest.mark.serial
def test_more_than_two_gigabytes_of_weights_calibrate(model):
    path, rows = model
    feeds = [np.random.default_rng(seed).normal(size=(1, SIZE)).astype(np.float32) for seed in (1, 2)]
    found = ranges_of(load_float(path)[0], [{"x": feed} for feed in feeds], "auto").tensors
    expected = np.concatenate([feed[:, :8].astype(np.float64) @ rows for feed in feeds])
    assert found["a"].minimum == pytest.approx(expected.min(), rel=1e-4)
    assert found["a"].maximum == pytest.approx(expected.max(), rel=1e-4)
    assert found["x"].maximum == max(feed.max() for feed in feeds)
