"""A model beyond protobuf's 2 GB, in memory bounded by a small multiple of its weights."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx
import pytest

from deploykit.runtime import open_runtime

ROWS, COLUMNS = 23_000, 24_000  # 2.2 GB
SCRIPT = """
import resource, sys
from deploykit.converters.openvino.convert import convert_job
convert_job(sys.argv[1], sys.argv[2], {}, {}, {}, "fp32")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.serial
@pytest.mark.slow
def test_a_model_of_more_than_2_gb_is_converted_in_bounded_memory(tmp_path):
    nbytes = ROWS * COLUMNS * 4
    row = np.random.default_rng(0).normal(size=COLUMNS).astype(np.float32)
    with (tmp_path / "w.data").open("wb") as stream:
        for index in range(ROWS):
            stream.write(np.roll(row, index).tobytes())
    weight = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[ROWS, COLUMNS])
    weight.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "w.data"), ("offset", "0"), ("length", str(nbytes))):
        weight.external_data.add(key=key, value=value)
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", ROWS])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", COLUMNS])
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"], name="dense")
    graph = onnx.helper.make_graph([node], "large", [x], [y], [weight])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, tmp_path / "m.onnx")
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "m.onnx"), str(tmp_path / "m.xml")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 2.5 * nbytes
    assert (tmp_path / "m.bin").stat().st_size >= nbytes
    (tmp_path / "w.data").unlink()  # room for the engine's own copy
    feed = np.zeros((1, ROWS), np.float32)
    feed[0, [0, 7]] = 1, 2
    found = open_runtime(tmp_path / "m.xml").predict({"x": feed})["y"]
    assert np.allclose(found[0], row + 2 * np.roll(row, 7), atol=1e-4)
