import numpy as np
import onnx
import onnx_ir as ir
import pytest

from deploykit import graph
from deploykit.data.request import data_request
from deploykit.spread import NUDGE, movement_job, nudge_weights

# What is left of a difference of two nearly equal products: a rounding of a weight is large there.
MODEL = """<ir_version: 8, opset_import: ["": 17]> g (float[n,2] x) => (float[n,1] y, float[n,2] kept)
<float[2,1] w = {1000.0, -999.99}, float[2] sizes = {1, 2}> {
    [product] y = MatMul (x, w)
    [beside] kept = Mul (x, sizes)
}"""


@pytest.fixture
def model(tmp_path):
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_weights_move_by_four_units_and_nothing_else_does(model):
    loaded = graph.load(model)
    assert nudge_weights(loaded) == 1
    before, after = graph.load(model).graph.initializers, loaded.graph.initializers
    was, now = (graph_values["w"].const_value.numpy() for graph_values in (before, after))
    assert np.abs(now / was - 1) == pytest.approx(NUDGE, rel=0.2)
    np.testing.assert_array_equal(before["sizes"].const_value.numpy(), after["sizes"].const_value.numpy())


def test_constants_of_nodes_are_weights_too():
    text = MODEL.replace("float[2,1] w = {1000.0, -999.99}, ", "").replace(
        "[product]", "w = Constant <value = float[2,1] {1000.0, -999.99}> ()\n    [product]"
    )
    loaded = ir.from_proto(onnx.parser.parse_model(text))
    assert nudge_weights(loaded) == 1


def test_each_draw_is_another_one(model):
    drawn = []
    for seed in range(6):
        loaded = graph.load(model)
        nudge_weights(loaded, seed)
        drawn.append(loaded.graph.initializers["w"].const_value.numpy().tobytes())
    assert len(set(drawn)) > 1


def test_the_movement_of_each_output(model, tmp_path):
    np.savez(tmp_path / "x.npz", x=np.ones((4, 2), np.float32))
    found = movement_job(str(model), str(model), data_request(str(tmp_path / "x.npz"), "parity"))
    # Both products move by 1000 * 2^-21 and leave 0.01: apart or together, at least one of four draws is apart.
    assert found["y"] == pytest.approx(2 * 1000 * NUDGE / 0.01 - 1e-4, rel=0.2)
    assert found["kept"] == 0.0


def test_a_model_without_weights_does_not_move(tmp_path):
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Neg (x) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=np.ones(2, np.float32))
    assert movement_job(*[str(tmp_path / "m.onnx")] * 2, data_request(str(tmp_path / "x.npz"), "parity")) == {}
