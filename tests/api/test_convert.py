"""`deploykit.convert`: preflight, build, both gates, and what is published."""

from __future__ import annotations

import json
import sys

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import deploykit
from deploykit import artifact
from deploykit.api.convert_stage import ConvertStage
from deploykit.data.request import bounds_of
from deploykit.errors import (
    ExitCode,
    InvalidFileError,
    MissingDependencyError,
    OutputError,
    UnavailableError,
    UsageError,
)
from deploykit.target import get_target

NET = """
<ir_version: 9, opset_import: ["" : 19]>
net (float[batch,4] x) => (float[batch,3] y)
<float[4,3] w = {0.1,-0.2,0.3,0.4,0.5,-0.6,0.7,0.8,-0.9,1.0,1.1,1.2}, float[3] b = {0.1,0.2,0.3}>
{
  [dense] h = Gemm (x, w, b)
  [active] y = Relu (h)
}"""
BAD = """
<ir_version: 9, opset_import: ["" : 19, "mine" : 1]>
bad (float[batch,3,3] x) => (float[batch] y, float[batch,3,3] z) {
  [determinant] y = Det (x)
  [custom] z = mine.Thing (x)
}"""
DIMS = ["batch=1..8"]


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "net.onnx"
    onnx.save(onnx.parser.parse_model(NET), path)
    return path


def errors(report):
    return [(f.code, f.node) for f in report.findings if f.severity == "error"]


@pytest.mark.parametrize(("to", "suffix"), [("onnxruntime", ".onnx"), ("openvino", ".xml")])
def test_what_runs_here_is_compared_on_the_real_engine(model, tmp_path, to, suffix):
    if to == "openvino":
        pytest.importorskip("openvino")
    output = tmp_path / f"made{suffix}"
    report = deploykit.convert(model, to=to, output=output, dims=DIMS)
    assert (report.exit_code, report.artifact.execution) == (ExitCode.OK, "real")
    parent = report.metrics["parity"]["parent"]
    assert [row["name"] for row in parent["outputs"]] == ["y"]
    assert all(row["passed"] for row in parent["outputs"])
    assert "source" not in report.metrics["parity"]
    assert all((tmp_path / name).exists() for name in report.artifact.files)


@pytest.mark.parametrize(("to", "suffix"), [("tensorrt-rtx", ".engine")])
def test_what_does_not_run_here_is_built_and_says_so(model, tmp_path, to, suffix):
    target = get_target(to)
    pytest.importorskip(target.packages[0])
    from deploykit.target import unavailable

    if target.runtime is not None and unavailable(target) is None:
        pytest.skip("it runs here")
    output = tmp_path / f"made{suffix}"
    report = deploykit.convert(model, to=to, output=output, dims=DIMS)
    assert (report.exit_code, report.artifact.execution) == (ExitCode.OK, "none")
    assert report.metrics["parity"] is None
    (said,) = [f for f in report.findings if f.code == "DK502"]
    assert "not executed" in said.message
    made = artifact.read_manifest(output)
    assert made.execution == "none"
    assert made.parent_sha256 == report.artifact.parent_sha256
    assert [(s.name, s.dtype, s.shape) for s in made.inputs] == [("x", "float32", ("batch", 4))]
    assert made.options["dims"] == {"batch": [1, 8]}


@pytest.mark.skipif(sys.platform == "darwin", reason="Core ML itself runs here")
def test_a_package_is_compared_by_a_simulation_that_says_so(model, tmp_path):
    pytest.importorskip("coremltools")
    output = tmp_path / "made.mlpackage"
    report = deploykit.convert(model, to="coreml", output=output, dims=DIMS)
    assert (report.exit_code, report.artifact.execution) == (ExitCode.OK, "simulated")
    parent = report.metrics["parity"]["parent"]
    assert parent["execution"] == "simulated"
    assert "not Apple's kernels" in parent["engines"]["candidate"]
    assert all(row["passed"] for row in parent["outputs"])
    assert artifact.read_manifest(output).execution == "simulated"


@pytest.mark.skipif(sys.platform == "darwin", reason="Core ML itself runs here")
def test_a_simulation_is_validated_but_neither_timed_nor_served(model, tmp_path):
    pytest.importorskip("coremltools")
    output = tmp_path / "made.mlpackage"
    deploykit.convert(model, to="coreml", output=output, dims=DIMS)
    compared = deploykit.validate(model, output, samples=2)
    assert (compared.exit_code, compared.metrics["execution"]) == (ExitCode.OK, "simulated")
    measured = deploykit.bench(output, seconds=0.1)
    assert measured.exit_code == ExitCode.UNAVAILABLE
    assert measured.metrics["rows"][0]["execution"] == "none"
    assert "Apple systems only" in measured.metrics["rows"][0]["reason"]
    with pytest.raises(UnavailableError, match="Apple systems only"):
        deploykit.serve(output, http_port=0)


@pytest.mark.skipif(sys.platform == "darwin", reason="Core ML itself runs here")
def test_an_operator_that_the_interpreter_lacks_is_named_and_fails_nothing(model, tmp_path, monkeypatch):
    pytest.importorskip("coremltools")

    def refused(*arguments, **options):
        raise UnavailableError("made.mlpackage is not simulated: the interpreter has no lstm", code="DK502")

    monkeypatch.setattr(ConvertStage, "compare_with", refused)
    report = deploykit.convert(model, to="coreml", output=tmp_path / "made.mlpackage", dims=DIMS)
    assert (report.exit_code, report.artifact.execution) == (ExitCode.OK, "none")
    assert report.metrics["parity"] is None
    assert any("has no lstm" in finding.message for finding in report.findings)


def test_the_manifest_is_the_same_bytes_for_the_same_work(model, tmp_path):
    pytest.importorskip("coremltools")
    texts = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        deploykit.convert(model, to="coreml", output=tmp_path / name / "m.mlpackage", dims=DIMS)
        texts.append((tmp_path / name / "m.mlpackage.deploykit.json").read_bytes())
    assert texts[0] == texts[1]
    assert str(tmp_path) not in json.dumps(json.loads(texts[0]))


@pytest.mark.parametrize(("to", "suffix"), [("tensorrt-rtx", ".engine"), ("coreml", ".mlpackage")])
def test_a_refusal_lists_all_nodes_and_publishes_nothing(tmp_path, to, suffix):
    pytest.importorskip(get_target(to).packages[0])
    path = tmp_path / "bad.onnx"
    onnx.save(onnx.parser.parse_model(BAD), path)
    report = deploykit.convert(path, to=to, output=tmp_path / f"made{suffix}", dims=DIMS)
    assert (report.exit_code, report.artifact) == (ExitCode.GATE_FAILED, None)
    assert errors(report) == [("DK201", "determinant"), ("DK201", "custom")]
    assert all(f.hint for f in report.findings if f.severity == "error")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.onnx"]


def test_a_failed_second_gate_unpublishes(model, tmp_path):
    other = onnx.load(model)
    weight = next(t for t in other.graph.initializer if t.name == "w")
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(1.1), "w"))
    onnx.save(other, tmp_path / "float.onnx")
    output = tmp_path / "made.onnx"
    report = deploykit.convert(model, to="onnxruntime", output=output, reference=tmp_path / "float.onnx", dims=DIMS)
    assert (report.exit_code, report.artifact) == (ExitCode.GATE_FAILED, None)
    (problem,) = [f for f in report.findings if f.severity == "error"]
    assert (problem.code, problem.tensor) == ("DK532", "y")
    assert "its float source (float.onnx)" in problem.message
    assert all(row["passed"] for row in report.metrics["parity"]["parent"]["outputs"])
    assert not output.exists()


def test_usage_is_checked_before_any_work(model, tmp_path):
    with pytest.raises(UsageError, match="there is no target"):
        deploykit.convert(model, to="coremll", output=tmp_path / "x.mlpackage")
    with pytest.raises(UsageError, match="has no version"):
        deploykit.convert(model, to="coreml@iOS9", output=tmp_path / "x.mlpackage")
    with pytest.raises(UsageError, match="has no option 'sms'"):
        deploykit.convert(model, to="tensorrt-rtx", output=tmp_path / "x.engine", options={"sms": 89})
    with pytest.raises(OutputError, match=r"should end in '\.engine'"):
        deploykit.convert(model, to="tensorrt-rtx", output=tmp_path / "x.plan")
    with pytest.raises(InvalidFileError, match="no such"):
        deploykit.convert(tmp_path / "none.onnx", to="onnxruntime", output=tmp_path / "x.onnx")
    with pytest.raises(UsageError, match="not INPUT=MIN:OPT:MAX"):
        deploykit.convert(model, to="onnxruntime", output=tmp_path / "x.onnx", profiles=["1x4"])
    (tmp_path / "there.onnx").write_bytes(b"old")
    with pytest.raises(OutputError, match="exists"):
        deploykit.convert(model, to="onnxruntime", output=tmp_path / "there.onnx")


def test_a_missing_backend_names_the_extra(model, tmp_path, monkeypatch):
    monkeypatch.setattr("deploykit.lazy.installed", lambda module: module != "coremltools")
    with pytest.raises(MissingDependencyError) as caught:
        deploykit.convert(model, to="coreml", output=tmp_path / "x.mlpackage")
    assert caught.value.hint == "pip install 'deploykit[coreml]'"


def test_a_precision_that_the_target_does_not_take_is_named(model, tmp_path):
    onnx.save(
        onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 19]>
        q (float[2,4] x) => (float[2,3] y) <int8[4,3] w = {1,2,3,4,5,6,7,8,9,10,11,12}, float s = {0.1}, int8 z = {0}> {
          [weights] f = DequantizeLinear (w, s, z)
          [product] y = MatMul (x, f)
        }"""),
        tmp_path / "q.onnx",
    )
    pytest.importorskip("tensorrt_rtx")
    report = deploykit.convert(tmp_path / "q.onnx", to="tensorrt-rtx", output=tmp_path / "q.engine")
    (problem,) = [f for f in report.findings if f.code == "DK530"]
    assert "int8-weights" in problem.message
    assert report.exit_code == ExitCode.GATE_FAILED


def test_options_describe_the_result_and_nothing_of_this_machine():
    stage = ConvertStage(get_target("tensorrt-rtx"), None, {"sm": [89]}, {"batch": [1, 4]}, {}, "fp16")
    assert json.loads(json.dumps(stage.options)) == {
        "to": "tensorrt-rtx",
        "version": None,
        "options": {"sm": [89]},
        "dims": {"batch": [1, 4]},
        "profiles": {},
        "precision": "fp16",
        "reference_sha256": None,
    }


def test_bounds_may_be_texts_or_numbers():
    assert bounds_of(["a=1..4", "b=2.."]) == bounds_of({"a": [1, 4], "b": (2, None)})


def test_a_bound_for_a_dimension_that_is_not_there_is_refused(tmp_path):
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[batch, 2] x) => (float[batch, 2] y) { y = Relu(x) }'
    )
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(UsageError) as caught:
        deploykit.convert(tmp_path / "m.onnx", to="onnxruntime", output=tmp_path / "out.onnx", dims=["bacht=1..4"])
    assert caught.value.code == "DK534"
    assert "batch" in caught.value.hint
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize(
    ("option", "given"),
    [
        ("--input", {"inputs": ["x:float32[1,4]"]}),
        ("--weights", {"weights": "w.pt"}),
        ("--sample", {"sample": "s.npz"}),
    ],
)
def test_what_only_an_export_takes_is_refused_for_an_onnx_file(model, tmp_path, option, given):
    with pytest.raises(UsageError, match=option):
        deploykit.convert(model, to="onnxruntime", output=tmp_path / "made.onnx", dims=DIMS, **given)
    assert not (tmp_path / "made.onnx").exists()
