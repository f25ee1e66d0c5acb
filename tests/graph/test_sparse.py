"""Sparse tensors keep their values, and declare no more memory than they may take."""

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

from deploykit import graph
from deploykit.errors import ModelError

INDICES = {"flat": [1, 5], "coordinates": [[0, 1], [1, 2]]}


def sparse_model(indices, dims=(2, 3), values=(2.0, 7.0), *, constant=False):
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 17]>
        g (float[2,3] x) => (float[2,3] y) { y = Add(x, s) }""")
    indices = np.array(indices, np.int64)
    sparse = onnx.SparseTensorProto(dims=dims)
    sparse.values.CopyFrom(onnx.numpy_helper.from_array(np.array(values, np.float32), "" if constant else "s"))
    sparse.indices.CopyFrom(onnx.numpy_helper.from_array(indices))
    if constant:
        node = onnx.helper.make_node("Constant", [], ["s"], name="c", sparse_value=sparse)
        model.graph.node.insert(0, node)
    else:
        model.graph.sparse_initializer.append(sparse)
    return model


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("form", INDICES)
def test_values_are_kept(tmp_path, form, constant):
    path, out = tmp_path / "m.onnx", tmp_path / "out.onnx"
    path.write_bytes(sparse_model(INDICES[form], constant=constant).SerializeToString())
    x = np.ones((2, 3), np.float32)
    expected = x + np.array([[0, 2, 0], [0, 0, 7]], np.float32)
    graph.save(graph.load(path), out)
    (result,) = onnxruntime.InferenceSession(str(out)).run(None, {"x": x})
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(
    ("indices", "dims"),
    [
        ([1, 6], (2, 3)),
        ([-1, 5], (2, 3)),
        ([[0, 1], [2, 0]], (2, 3)),
        ([1, 2, 3], (2, 3)),
        ([1, 2], (1 << 20, 1 << 12)),
        ([1, 2], (-1, 3)),
    ],
)
def test_hostile_declarations_are_refused(tmp_path, indices, dims):
    path = tmp_path / "m.onnx"
    path.write_bytes(sparse_model(indices, dims).SerializeToString())
    with pytest.raises(ModelError, match="sparse initializer 's'") as caught:
        graph.load(path)
    assert caught.value.code == "DK116"
