import json

import onnx
import pytest
from onnx import parser

import deploykit
from deploykit import lazy
from deploykit.errors import ExitCode, MissingDependencyError, ModelError, UsageError
from deploykit.opsupport import sources
from deploykit.target import target_names

HEADER = '<ir_version: 10, opset_import: ["": 20, "my.ops": 1]>\n'
ODD = (
    HEADER
    + "g (float[2] x) => (float[2] y) { [relu] a = Relu (x) [odd] b = my.ops.Odd (a) [more] y = my.ops.More (b) }"
)
# OpenVINO refuses the sum (its input comes from a sequence), ONNX Runtime runs it.
SEQUENCE = (
    HEADER
    + """g (float[3,4] x) => (float s) {
        [split] q = SplitToSequence (x)
        [join] a = ConcatFromSequence <axis = 0> (q)
        [sum] s = ReduceSum <keepdims = 0> (a)
    }"""
)
PLAIN = HEADER + "g (float[N,4] x) => (float[N,4] y) { [relu] y = Relu (x) }"


@pytest.fixture
def model(tmp_path):
    def write(text, name="model.onnx"):
        onnx.save(parser.parse_model(text), tmp_path / name)
        return tmp_path / name

    return write


def test_all_problems_of_all_targets_come_at_once(model):
    report = deploykit.check(model(ODD), targets=["onnxruntime", "openvino"])
    assert report.exit_code == ExitCode.GATE_FAILED
    found = {(f.target, f.node, f.op, f.code, f.severity) for f in report.findings}
    assert found == {
        (target, node, op, "DK201", "error")
        for target in ("onnxruntime", "openvino")
        for node, op in (("odd", "Odd"), ("more", "More"))
    }
    assert all(f.hint and "my.ops" in f.message for f in report.findings)


def test_summary_has_the_keys_of_the_contract(model):
    report = deploykit.check(model(PLAIN), targets=["onnxruntime"])
    assert report.exit_code == ExitCode.OK
    (row,) = json.loads(json.dumps(report.as_dict()))["metrics"]["targets"]
    assert row == {
        "name": "onnxruntime",
        "version": "cpu",
        "source": row["source"],
        "supported": 1,
        "conditional": 0,
        "unsupported": 0,
        "unknown": 0,
        "nodes": 1,
        "macs_share": None,
        "partitions": 1,
        "verdict": "runs whole",
    }


def test_named_target_that_does_not_run_fails_although_another_runs(model):
    report = deploykit.check(model(SEQUENCE), targets=["onnxruntime", "openvino"])
    assert report.exit_code == ExitCode.GATE_FAILED
    assert {f.target for f in report.findings if f.severity == "error"} == {"openvino"}
    assert {"split", "join"} <= {f.node for f in report.findings}


def test_all_fails_only_when_no_target_runs(model):
    report = deploykit.check(model(SEQUENCE), targets=["all"])
    assert report.exit_code == ExitCode.OK
    assert list(dict.fromkeys(row["name"] for row in report.metrics["targets"])) == target_names()
    places = {f"{row['name']}@{row['version']}" for row in report.metrics["targets"]}
    assert {"onnxruntime@cpu", "onnxruntime@cuda", "onnxruntime-web@webgpu"} <= places
    assert "tensorrt@8.6" not in places
    assert any(f.severity == "warning" and f.target == "openvino" and f.node == "split" for f in report.findings)
    report = deploykit.check(model(ODD, "odd.onnx"), targets=["all"])
    assert report.exit_code == ExitCode.GATE_FAILED


def test_one_missing_engine_among_several_is_a_note(model, monkeypatch):
    monkeypatch.setattr(lazy, "installed", lambda package: package != "openvino")
    report = deploykit.check(model(PLAIN), targets=["onnxruntime", "openvino"])
    assert report.exit_code == ExitCode.OK
    (found,) = [f for f in report.findings if f.target == "openvino"]
    assert (found.code, found.severity) == ("DK208", "note")
    assert "deploykit[openvino]" in found.hint
    assert "speaks in its place" in found.message
    assert [row["verdict"] for row in report.metrics["targets"]] == ["runs whole", "runs whole"]


def test_the_only_target_with_nobody_to_ask_is_exit_3_with_the_command(model, monkeypatch):
    monkeypatch.setattr(sources, "load_measured", lambda engine: None)
    monkeypatch.setattr(lazy, "installed", lambda package: package != "coremltools")
    with pytest.raises(MissingDependencyError) as caught:
        deploykit.check(model(PLAIN), targets=["coreml"])
    assert "deploykit[coreml]" in caught.value.hint


def test_what_a_target_needs_besides_operators_is_a_warning_here(model):
    report = deploykit.check(model(PLAIN), targets=["tensorrt-rtx"])
    assert report.exit_code == ExitCode.OK
    assert [(f.code, f.severity) for f in report.findings] == [("DK520", "warning")]
    assert deploykit.check(model(PLAIN), targets=["tensorrt-rtx"], dims=["N=1..8"]).findings == []


def test_bounds_of_a_dimension_that_the_model_does_not_have_are_refused(model):
    with pytest.raises(UsageError, match="no dimension 'batch'") as caught:
        deploykit.check(model(PLAIN), targets=["tensorrt"], dims=["batch=1..8"])
    assert caught.value.code == "DK534"


def test_unjudged_nodes_behind_a_refused_one_are_one_note(model):
    chain = " ".join(f"t{i} = Relu (t{i - 1})" for i in range(1, 30))
    text = f"g (float[2] x) => (float[2] y) {{ [odd] t0 = my.ops.Odd (x) {chain} y = Abs (t29) }}"
    report = deploykit.check(model(HEADER + text), targets=["tensorrt-rtx"])
    unjudged = [f for f in report.findings if f.code == "DK210"]
    assert len(unjudged) <= 1
    assert [f.node for f in report.findings if f.severity == "error"] == ["odd"]


def test_model_that_the_engine_refuses_without_naming_a_node_fails(model):
    path = model(PLAIN.replace("ir_version: 10", "ir_version: 99"))
    report = deploykit.check(path, targets=["onnxruntime"])
    assert report.exit_code == ExitCode.GATE_FAILED
    assert report.metrics["targets"][0]["verdict"] == "does not run"
    assert [f.code for f in report.findings if f.severity == "error"] == ["DK202"]


@pytest.mark.parametrize("targets", [[], ["openvinno"], ["openvino@2020"]])
def test_wrong_target_is_a_usage_error(model, targets):
    with pytest.raises(UsageError):
        deploykit.check(model(PLAIN), targets=targets)


def test_broken_file_is_refused_before_any_engine_is_asked(tmp_path):
    (tmp_path / "no.onnx").write_text("not a model", encoding="utf-8")
    with pytest.raises(ModelError):
        deploykit.check(tmp_path / "no.onnx", targets=["openvino"])


def test_causes_come_first_and_what_follows_from_them_is_a_note(model):
    report = deploykit.check(model(SEQUENCE), targets=["openvino"])
    told = [(f.node, f.severity) for f in report.findings if f.code == "DK201"]
    assert told == [("split", "error"), ("join", "error"), ("sum", "note")]
    assert "'join'" in report.findings[2].message


def test_a_node_that_holds_the_cause_is_refused_after_it(model):
    text = (
        HEADER
        + """g (bool c, float[2] x) => (float[2] y) {
        [whole] y = If (c) <
            then_branch = t () => (float[2] a) { [odd] a = my.ops.Odd (x) },
            else_branch = e () => (float[2] b) { [relu] b = Relu (x) }>
    }"""
    )
    report = deploykit.check(model(text), targets=["openvino"])
    assert [(f.node, f.severity) for f in report.findings] == [("odd", "error"), ("whole", "error")]
