"""The same faults in an OpenVINO IR and in a Core ML package, quantized models, and reproductions as files."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import deploykit
from deploykit.errors import OutputError, UsageError
from deploykit.io import size_of


def errors(report):
    return {finding.code: finding for finding in report.findings if finding.severity == "error"}


def again(files, command):
    """The report of the command that a reproduction comes with."""
    words = command.split()
    assert words[:2] == ["deploykit", "validate"]
    assert words[4] == "--data"
    assert set(words[2:4]) | {words[5]} <= set(files)
    return deploykit.validate(words[2], words[3], data=words[5])


def weight(path):
    """The one weight of a part that is a convolution."""
    (tensor,) = [tensor for tensor in onnx.load(path).graph.initializer if len(tensor.dims) == 4]
    return numpy_helper.to_array(tensor)


@pytest.fixture(scope="module")
def pair(tmp_path_factory, model, faults):
    """A folder with a model, and one with another weight in block 60, in every format."""
    folder = tmp_path_factory.mktemp("pair")
    onnx.save(model, folder / "model.onnx")
    onnx.save(faults["other_weight"](model, 480, 1.2), folder / "fault.onnx")
    return folder


def test_an_ir_with_another_weight(pair, tmp_path):
    pytest.importorskip("openvino")
    deploykit.convert(pair / "fault.onnx", to="openvino", output=pair / "fault.xml")
    sub = tmp_path / "sub.onnx"
    report = deploykit.validate(
        pair / "model.onnx", pair / "fault.xml", samples=2, locate=True, save_repro=sub, threads=1
    )
    first, located = report.metrics["first_divergence"], report.metrics["located"]
    assert set(first) == {"node", "op", "tensor", "source_node", "max_abs", "sqnr_db"}
    assert (first["source_node"], first["op"]) == ("/block.60/Conv_481", "Add")  # its bias is an operator there
    assert located["matched"] == located["tensors"] == 1000
    assert errors(report)["DK452"].node == "/block.60/Conv_481"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["sub.bin", "sub.npz", "sub.onnx", "sub.xml"]
    assert [node.op_type for node in onnx.load(sub).graph.node] == ["Conv"]
    alone = again(located["repro"]["files"], located["repro"]["command"])
    assert alone.metrics["outputs"][0]["name"] == "/block.60/Conv_481/out"
    assert not alone.metrics["outputs"][0]["passed"]


def test_the_part_of_an_onnx_candidate_shows_the_fault_alone(pair, tmp_path):
    sub = tmp_path / "sub.onnx"
    report = deploykit.validate(pair / "model.onnx", pair / "fault.onnx", samples=1, save_repro=sub)
    repro = report.metrics["located"]["repro"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["sub.npz", "sub.onnx", "sub.reference.onnx"]
    weights = [weight(tmp_path / name) for name in ("sub.onnx", "sub.reference.onnx")]
    np.testing.assert_allclose(weights[0], 1.2 * weights[1], rtol=1e-5)
    alone = again(repro["files"], repro["command"])
    assert alone.exit_code == 1
    assert alone.metrics["samples"] == 1
    with pytest.raises(OutputError) as refused:
        deploykit.validate(pair / "model.onnx", pair / "fault.onnx", samples=1, save_repro=sub)
    assert refused.value.code == "DK120"


@pytest.fixture(scope="module")
def package(tmp_path_factory, faults):
    """A smaller pair: the package takes its time."""
    pytest.importorskip("coremltools")
    folder = tmp_path_factory.mktemp("package")
    model = faults["deep"](200, decay=0.9)
    onnx.save(model, folder / "model.onnx")
    onnx.save(faults["other_weight"](model, 96, 1.2), folder / "fault.onnx")
    deploykit.convert(folder / "fault.onnx", to="coreml", output=folder / "fault.mlpackage")
    return folder


def test_a_package_with_another_weight(package, tmp_path):
    sub = tmp_path / "sub.onnx"
    report = deploykit.validate(
        package / "model.onnx", package / "fault.mlpackage", samples=1, locate=True, save_repro=sub
    )
    first, located = report.metrics["first_divergence"], report.metrics["located"]
    assert (first["source_node"], first["op"]) == ("/block.12/Conv_97", "conv")
    assert located["execution"] == "simulated"
    assert located["matched"] == located["tensors"] == 200
    assert not located["alone"]["agrees"]
    files = located["repro"]["files"]
    assert size_of(tmp_path / "sub.mlpackage") < size_of(package / "fault.mlpackage") / 5  # its own weights only
    alone = again(files, located["repro"]["command"])
    assert (alone.metrics["outputs"][0]["name"], alone.exit_code) == ("/block.12/Conv_97/out", 1)


@pytest.mark.slow
def test_a_package_of_a_thousand_nodes(pair):
    pytest.importorskip("coremltools")
    deploykit.convert(pair / "fault.onnx", to="coreml", output=pair / "fault.mlpackage")
    report = deploykit.validate(pair / "model.onnx", pair / "fault.mlpackage", samples=1, locate=True)
    assert report.metrics["first_divergence"]["source_node"] == "/block.60/Conv_481"
    assert report.metrics["located"]["matched"] == 1000


def test_what_cannot_be_looked_into_is_refused_first(pair, package):
    with pytest.raises(UsageError) as refused:
        deploykit.validate(package / "fault.mlpackage", pair / "model.onnx", locate=True)
    assert refused.value.code == "DK456"
    with pytest.raises(OutputError) as wrong:
        deploykit.validate(pair / "model.onnx", pair / "fault.onnx", save_repro=pair / "sub.xml")
    assert wrong.value.code == "DK123"


def test_models_that_agree_say_so(pair):
    report = deploykit.validate(pair / "model.onnx", pair / "model.onnx", samples=1, locate=True)
    assert report.exit_code == 0
    assert report.metrics["first_divergence"] is None
    assert "DK454" in {finding.code for finding in report.findings}


def test_nodes_without_a_counterpart_are_told_together(tmp_path):
    text = '<ir_version: 8, opset_import: ["" : 17]> agraph (float[1,4] x) => (float[1,4] y) { NODES }'
    for name, nodes in (("a", "p = Neg (x) q = Abs (p) y = Exp (q)"), ("b", "m = Sin (x) y = Cos (m)")):
        onnx.save(onnx.parser.parse_model(text.replace("NODES", nodes)), tmp_path / f"{name}.onnx")
    report = deploykit.validate(tmp_path / "a.onnx", tmp_path / "b.onnx", samples=1, locate=True)
    assert errors(report)["DK452"].message.startswith("one of 3 nodes up to node 'Exp_1' (Exp) is the first to differ")
    (note,) = [finding for finding in report.findings if finding.code == "DK453"]
    assert all(name in note.message for name in ("Neg_1", "Abs_1", "Exp_1"))


QDQ = """<ir_version: 8, opset_import: ["" : 17]>
agraph (float[1,4] x) => (float[1,4] y)
<float[4,4] w = {1,2,3,4,-1,-2,-3,-4,1,1,1,1,2,-2,2,-2}, float s = {0.02}, float r = {SCALE}, int8 z = {0}> {
  xq = QuantizeLinear (x, s, z)  xd = DequantizeLinear (xq, s, z)
  h = MatMul (xd, w)
  hq = QuantizeLinear (h, r, z)  hd = DequantizeLinear (hq, r, z)
  t = Tanh (hd)  y = Mul (t, t)
}"""
FLOAT = """<ir_version: 8, opset_import: ["" : 17]>
agraph (float[1,4] x) => (float[1,4] y) <float[4,4] w = {1,2,3,4,-1,-2,-3,-4,1,1,1,1,2,-2,2,-2}> {
  h = MatMul (x, w)  t = Tanh (h)  y = Mul (t, t)
}"""


def test_a_scale_that_is_far_too_small_is_found_at_the_tensor_behind_it(locate):
    found = locate(onnx.parser.parse_model(FLOAT), onnx.parser.parse_model(QDQ.replace("SCALE", "0.001")), row="int8")
    first = found["first"]
    assert (first["tensor"], first["inputs"]) == ("t", ["h"])  # h itself is still right, what is read of it is not
    assert first["sqnr_db"] < 20


QOPERATOR = """<ir_version: 8, opset_import: ["" : 17]>
agraph (float[1,4] x) => (float[1,4] y)
<int8[4,4] w = {1,2,3,4,-1,-2,-3,-4,1,1,1,1,2,-2,2,-2}, float one = {WEIGHT},
 float s = {0.02}, float r = {0.2}, int8 z = {0}> {
  x_quantized = QuantizeLinear (x, s, z)
  h_quantized = QLinearMatMul (x_quantized, s, z, w, one, z, r, z)
  hd = DequantizeLinear (h_quantized, r, z)
  t = Tanh (hd)  y = Mul (t, t)
}"""


def test_integers_are_compared_as_the_numbers_that_they_stand_for(locate):
    found = locate(onnx.parser.parse_model(FLOAT), onnx.parser.parse_model(QOPERATOR.replace("WEIGHT", "2.0")), "int8")
    first = found["first"]
    assert (first["tensor"], first["candidate_tensor"], first["op"]) == ("h", "h_quantized", "QLinearMatMul")
    assert first["sqnr_db"] == pytest.approx(0, abs=1)  # twice the value: as much noise as signal


def test_the_table_of_the_command(deploykit_cli, pair):
    done = deploykit_cli("validate", "model.onnx", "fault.onnx", "--samples", "1", "--locate", cwd=pair)
    assert done.code == 1
    assert "Where they part" in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if line.endswith("FIRST")]
    assert line.startswith("/block.60/Conv_481/out")
    assert "limits: |diff| <= 0.0001 * |ref| + 1e-05 * max|ref| (fp32, as for the outputs)" in done.stdout
