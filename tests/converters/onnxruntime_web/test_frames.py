import json
import struct

import numpy as np
import pytest

from deploykit.artifact import TensorSpec
from deploykit.converters.onnxruntime_web.frames import DTYPES, body_size, outputs_of, request


def test_request_has_its_lengths_the_head_and_every_tensors_bytes_in_order():
    feeds = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "t": np.array([["x", "ü"]], object), "b": np.int64(7)}
    specs = [TensorSpec("a", "float32", (2, 3)), TensorSpec("t", "string", (1, 2)), TensorSpec("b", "int64", ())]
    frame = request(feeds, specs)
    head_size, size = struct.unpack("<II", frame[:8])
    head = json.loads(frame[8 : 8 + head_size])
    assert size == 24 + 8 == len(frame) - 8 - head_size
    assert head["inputs"] == [
        {"name": "a", "dtype": "float32", "shape": [2, 3], "offset": 0, "size": 24},
        {"name": "t", "dtype": "string", "shape": [1, 2], "texts": ["x", "ü"]},
        {"name": "b", "dtype": "int64", "shape": [], "offset": 24, "size": 8},
    ]
    assert frame[8 + head_size :] == feeds["a"].tobytes() + (7).to_bytes(8, "little")


@pytest.mark.parametrize("dtype", sorted(DTYPES - {"string"}))
def test_answer_is_read_in_its_own_dtype(dtype):
    values = np.array([[0, 1, 1]], dtype)
    head = {"outputs": [{"name": "y", "dtype": dtype, "shape": [1, 3], "size": values.nbytes}]}
    found = outputs_of(head, values.tobytes())["y"]
    assert body_size(head) == values.nbytes
    assert (found.dtype, found.tolist()) == (values.dtype, values.tolist())


def test_texts_and_empty_tensors_come_back():
    head = {
        "outputs": [
            {"name": "t", "dtype": "string", "shape": [2, 1], "texts": ["a", ""]},
            {"name": "e", "dtype": "float32", "shape": [0, 4], "size": 0},
        ]
    }
    found = outputs_of(head, b"")
    assert found["t"].tolist() == [["a"], [""]]
    assert found["e"].shape == (0, 4)
