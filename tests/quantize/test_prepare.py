import numpy as np
import onnx
import pytest
from quantize_models import onnx_text, quantized, run, sqnr_db

from deploykit import graph
from deploykit.errors import ModelError
from deploykit.quantize.prepare import load_float

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


BN = """g (float[1,3,6,6] x) => (float[1,4,4,4] y) {
    a = Conv (x, w)
    [bn] b = BatchNormalization (a, gamma, beta, mean, var)
    y = Relu (b)
}"""


def bn_model(path, opset=17):
    statistics = {"gamma": normal(4), "beta": normal(4), "mean": normal(4), "var": np.abs(normal(4)) + 0.5}
    return onnx_text(BN, path, opset, w=normal(4, 3, 3, 3), **statistics)


def test_batch_normalization_is_folded_and_said(tmp_path):
    path = bn_model(tmp_path / "m.onnx")
    model, findings = load_float(path)
    assert [node.op_type for node in model.graph] == ["Conv", "Relu"]
    assert [finding.code for finding in findings] == ["DK353"]
    graph.save(model, tmp_path / "folded.onnx")
    feeds = {"x": normal(1, 3, 6, 6)}
    reference = run(path, feeds, optimize=False)["y"]
    assert np.allclose(run(tmp_path / "folded.onnx", feeds)["y"], reference, rtol=1e-4, atol=1e-5)


def test_an_output_keeps_its_name_when_the_normalization_before_it_is_folded(tmp_path):
    text = BN.replace("[bn] b =", "[bn] y =").replace("y = Relu (b)", "")
    statistics = {"gamma": normal(4), "beta": normal(4), "mean": normal(4), "var": np.abs(normal(4)) + 0.5}
    model, _ = load_float(onnx_text(text, tmp_path / "m.onnx", w=normal(4, 3, 3, 3), **statistics))
    assert [output.name for output in model.graph.outputs] == ["y"]
    assert [node.op_type for node in model.graph] == ["Conv"]


def test_opset_is_raised_and_said(tmp_path):
    path = bn_model(tmp_path / "old.onnx", opset=11)
    model, findings = load_float(path)
    assert graph.opset(model) == 13
    assert findings[0].code == "DK352"
    assert "from 11 to 13" in findings[0].message
    feeds = {"x": normal(1, 3, 6, 6)}
    found = quantized(path, [feeds])
    assert sqnr_db(run(path, feeds)["y"], run(found.path, feeds)["y"]) > 25


def test_quantized_models_are_refused_by_name(tmp_path):
    path = onnx_text("g (float[1,4] x) => (float[1,4] y) { y = MatMul (x, w) }", tmp_path / "m.onnx", w=normal(4, 4))
    again = quantized(path, [{"x": normal(1, 4)}]).path
    with pytest.raises(ModelError, match="quantized already") as caught:
        load_float(again)
    assert caught.value.code == "DK350"
    assert caught.value.node


def test_an_initializer_that_is_an_input_is_a_constant(tmp_path):
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1,4] x, float[4,4] w) => (float[1,4] y) { y = MatMul (x, w) }'
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(normal(4, 4), "w"))
    onnx.save(model, tmp_path / "m.onnx")
    found = quantized(tmp_path / "m.onnx", [{"x": normal(1, 4)}])
    assert [value.name for value in found.model.graph.inputs] == ["x"]
    assert len(found.nodes("DequantizeLinear")) == 2


def test_a_model_that_is_not_valid_at_a_higher_opset_is_refused(tmp_path):
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, None)
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    proto = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    onnx.save(onnx.helper.make_model(proto, opset_imports=[onnx.helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="'shape'") as caught:
        load_float(tmp_path / "m.onnx", minimum_opset=21)
    assert caught.value.code == "DK351"


@pytest.mark.parametrize("opset", [6, 8, 12])
def test_old_files_list_their_weights_among_the_inputs(tmp_path, opset):
    text = "g (float[2,32] x, float[32,48] w, float[48] b) => (float[2,48] y) { h = MatMul (x, w)  y = Add (h, b) }"
    path = onnx_text(text, tmp_path / "m.onnx", opset, w=normal(32, 48), b=normal(48))
    proto = onnx.load(path)
    proto.ir_version = 3
    onnx.checker.check_model(proto)
    onnx.save(proto, path)
    model, findings = load_float(path)
    assert [finding.code for finding in findings] == ["DK352"]
    graph.save(model, tmp_path / "new.onnx")
    onnx.checker.check_model(str(tmp_path / "new.onnx"), full_check=True)
    assert [value.name for value in onnx.load(tmp_path / "new.onnx").graph.input] == ["x"]


def test_a_default_that_callers_could_replace_is_constant_and_said(tmp_path):
    text = "g (float[2,32] x, float[32,48] w) => (float[2,48] y) { y = MatMul (x, w) }"
    _, findings = load_float(onnx_text(text, tmp_path / "m.onnx", w=normal(32, 48)))
    (said,) = findings
    assert (said.code, said.tensor) == ("DK348", "w")
