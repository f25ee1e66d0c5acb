import numpy as np
import pytest
from quantize_models import onnx_text, run

from deploykit import graph
from deploykit.quantize.constants import fold_moves
from deploykit.quantize.prepare import load_float

W = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


@pytest.mark.parametrize(
    "body",
    [
        "t = Transpose (w) y = Gemm <transB=1> (x, t)",
        "i = Identity (w) y = MatMul (x, i)",
        "r = Reshape (w, shape) i = Identity (r) y = MatMul (x, i)",
        "u = Unsqueeze (w, zero) s = Squeeze (u, zero) y = MatMul (x, s)",
    ],
)
def test_weights_behind_moves_become_constants(tmp_path, body):
    text = f"g (float[2,4] x) => (float[2,3] y) {{ {body} }}"
    arrays = {"w": W, "shape": np.int64([4, 3]), "zero": np.int64([0])}
    path = onnx_text(text, tmp_path / "m.onnx", **{name: array for name, array in arrays.items() if name in body})
    model, _ = load_float(path)
    assert fold_moves(model) == len(graph.load(path).graph) - 1
    assert [node.op_type for node in model.graph] == [graph.load(path).graph[-1].op_type]
    graph.save(model, tmp_path / "f.onnx")
    feed = {"x": np.random.default_rng(1).normal(size=(2, 4)).astype(np.float32)}
    np.testing.assert_array_equal(run(tmp_path / "f.onnx", feed)["y"], run(path, feed)["y"])


def test_an_output_and_what_is_computed_stay(tmp_path):
    text = "g (float[4,3] x) => (float[3,4] y, float[3,4] z) { y = Transpose (w) z = Transpose (x) }"
    model, _ = load_float(onnx_text(text, tmp_path / "m.onnx", w=W))
    assert fold_moves(model) == 0
    assert len(model.graph) == 2
