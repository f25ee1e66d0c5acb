import numpy as np
import onnx
import pytest

from deploykit import graph
from deploykit.data.request import data_request
from deploykit.spread import NUDGE, nudge, spread_job

MODEL = """<ir_version: 8, opset_import: ["": 17]> g (float[64] x) => (float[64] y, float[64] kept)
<float s = {1.0}, uint8 z = {100}> {
    [quantize] q = QuantizeLinear (x, s, z)
    [dequantize] y = DequantizeLinear (q, s, z)
    [beside] kept = Neg (x)
}"""


@pytest.fixture
def model(tmp_path):
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "q.onnx")
    return tmp_path / "q.onnx"


def data(folder, x):
    np.savez(folder / "x.npz", x=x)
    return data_request(str(folder / "x.npz"), "parity")


def test_values_on_a_border_take_the_other_level(model, tmp_path):
    x = np.arange(-32, 32, dtype=np.float32) + 0.5  # rounded to even: half of them up, half down
    levels = np.rint(x)
    found = spread_job(str(model), data(tmp_path, x))
    # Moved up or down, all of them go the same way: every second one by a level.
    assert found == {"y": pytest.approx(10 * np.log10(np.sum(levels**2) / 32), abs=0.2)}


def test_values_between_borders_do_not_move(model, tmp_path):
    assert spread_job(str(model), data(tmp_path, np.arange(-32, 32, dtype=np.float32) + 0.25)) == {}


def test_only_what_rounds_is_moved(model):
    loaded = graph.load(model)
    assert nudge(loaded) == 1
    scales = {node.op_type: float(node.inputs[1].const_value.numpy()) for node in loaded.graph if len(node.inputs) > 1}
    assert abs(scales["QuantizeLinear"] - 1) == pytest.approx(NUDGE, rel=0.1)
    assert scales["DequantizeLinear"] == 1.0
