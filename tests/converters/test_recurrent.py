import numpy as np
import onnx
import onnx_ir as ir
import pytest

from deploykit import graph
from deploykit.converters.recurrent import with_axes_as_inputs, write_out
from deploykit.reference import Reference

MODEL = """<ir_version: 6, opset_import: ["" : %d]>
net (float[3,2,4] x, float[1,15,4] w, float[1,15,5] r) => (float[3,1,2,5] y) { y = GRU <hidden_size = 5> (x, w, r) }"""


@pytest.mark.parametrize("opset", [11, 12, 13, 17])
def test_a_gru_that_is_written_out_is_valid_and_right(tmp_path, opset):
    proto = onnx.parser.parse_model(MODEL % opset)
    onnx.save(proto, tmp_path / "gru.onnx")
    model = with_axes_as_inputs(ir.from_proto(proto), {"GRU"})
    assert write_out(model) == 1
    graph.save(model, tmp_path / "written.onnx")
    onnx.checker.check_model(str(tmp_path / "written.onnx"), full_check=True)
    rng = np.random.default_rng(0)
    feeds = {
        value.name: rng.normal(size=[d.dim_value for d in value.type.tensor_type.shape.dim]).astype(np.float32)
        for value in proto.graph.input
    }
    expected = Reference(tmp_path / "gru.onnx").predict(feeds)["y"]
    made = Reference(tmp_path / "written.onnx").predict(feeds)["y"]
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-6)


def test_other_models_keep_their_opset():
    proto = onnx.parser.parse_model(MODEL % 11)
    assert with_axes_as_inputs(ir.from_proto(proto), {"LSTM"}).opset_imports[""] == 11
