import dataclasses
import time

import onnx_ir as ir
import pytest
from onnx import parser

from deploykit.isolation import workers
from deploykit.opsupport import Status, conditional, probe, supported, unknown, unsupported
from deploykit.opsupport.probe import Prober, identity, why_not_probed
from deploykit.opsupport.probing import settle_by_probing, settled_node
from deploykit.opsupport.summary import NodeVerdict, TargetSummary
from deploykit.target import Target, get_target

MODEL = """<ir_version: 10, opset_import: ["": 20]>
agraph (float[n,4] x, int64[n] i, float[n,4] z, double[n,3,3] m)
    => (float[n,4] a, float[n,4] b, float[n,4] c, float[n,4] e, double[n] d)
{
    [log] a = Log (x)
    [first] b = Relu (x)
    [second] c = Relu (z)
    [pick] e = Gather <axis = 0> (x, i)
    [det] d = Det (m)
}"""

WRONG = """
import os, time
from pathlib import Path

def _made(findings=()):
    return {"findings": list(findings), "versions": {"stub": "1.0"}}

def convert(model, output, options, dims, profiles, precision):
    what = options["what"]
    if what == "crash":
        os.kill(os.getpid(), 11)
    if what == "hang":
        time.sleep(60)
    if what == "interface":
        return _made([{"code": "DK529", "severity": "error", "message": "no bool at the door"}])
    if what == "open" and any(low != high for low, high in dims.values()):
        return _made([{"code": "DK526", "severity": "error", "message": "sizes must be fixed"}])
    Path(output).write_bytes(Path(model).read_bytes())
    with open(options["log"], "a") as log:
        log.write("built\\n")
    return _made()
"""


def model_of(text=MODEL):
    return ir.from_proto(parser.parse_model(text))


@pytest.fixture(scope="module")
def pool():
    with workers():
        yield


@pytest.fixture
def stub(tmp_path, monkeypatch):
    """A target whose converter does what its option `what` says, in a worker of its own."""
    (tmp_path / "stub_engine.py").write_text(WRONG)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return Target(
        "stub", "Stub", ".onnx", "onnx", None, (), (), converter="stub_engine:convert", support="x:y", worker="stub"
    )


@pytest.mark.parametrize("name", ["onnxruntime", "openvino", "coreml"])
def test_a_node_is_run_and_compared_with_the_reference(name, pool):
    target = get_target(name)
    pytest.importorskip(target.packages[0])
    found = Prober(model_of()).probe(target, {}, ["log", "first", "pick"])
    assert {verdict.status for verdict in found.values()} == {Status.SUPPORTED}
    how = "simulated" if name == "coreml" else "run"
    assert all(f"probed on {target.title}" in v.source and v.source.endswith(f"({how})") for v in found.values())


def test_tensorrt_rtx_builds_a_node_without_a_gpu(pool):
    pytest.importorskip("tensorrt_rtx")
    target = get_target("tensorrt-rtx")
    (verdict,) = Prober(model_of()).probe(target, {}, ["first"]).values()
    assert verdict.status is Status.SUPPORTED
    assert "(built)" in verdict.source or "(run)" in verdict.source
    (verdict,) = Prober(model_of()).probe(target, {}, ["det"]).values()
    assert verdict.status is Status.UNSUPPORTED
    assert "Det" in verdict.reason


def test_a_refusal_says_why_and_not_in_which_temporary_file(pool):
    pytest.importorskip("openvino")
    (verdict,) = Prober(model_of()).probe(get_target("openvino"), {}, ["det"]).values()
    assert verdict.status is Status.UNSUPPORTED
    assert "Det" in verdict.reason
    assert "node.onnx" not in verdict.reason
    assert verdict.source == f"probed on OpenVINO {probe.versions_of('openvino')['openvino']} (refused)"


def test_nodes_alike_are_tried_once(stub, tmp_path):
    with workers():
        found = Prober(model_of()).probe(
            stub, {"what": "copy", "log": str(tmp_path / "log")}, ["first", "second", "log", "first"]
        )
    assert {verdict.status for verdict in found.values()} == {Status.SUPPORTED}
    assert (tmp_path / "log").read_text().count("built") == 2  # Relu and Log


@pytest.mark.parametrize(
    ("what", "status", "reason"),
    [
        ("crash", Status.UNSUPPORTED, "crashed with SIGSEGV"),
        ("hang", Status.UNKNOWN, "did not answer within 1 s"),
        ("interface", Status.UNKNOWN, "no bool at the door"),
        ("open", Status.CONDITIONAL, "it is taken with n=2, and not with open sizes: sizes must be fixed"),
    ],
)
def test_what_an_engine_does_to_a_node_is_a_verdict(what, status, reason, stub, tmp_path, monkeypatch):
    monkeypatch.setattr(probe, "BUILD_SECONDS", 1 if what == "hang" else 60)
    started = time.monotonic()
    with workers():
        (verdict,) = Prober(model_of()).probe(stub, {"what": what, "log": str(tmp_path / "log")}, ["first"]).values()
    assert verdict.status is status
    assert reason in verdict.reason
    assert verdict.remedy
    assert time.monotonic() - started < 40


def test_bounds_of_the_user_are_kept(stub, tmp_path):
    with workers():
        prober = Prober(model_of(), dims={"n": [3, 3]})
        (verdict,) = prober.probe(stub, {"what": "open", "log": str(tmp_path / "log")}, ["first"]).values()
    assert verdict.status is Status.SUPPORTED


def test_a_node_without_known_types_is_not_settled(stub, tmp_path):
    text = """<ir_version: 10, opset_import: ["": 20, "my.ops": 3]>
    agraph (float[2,3] x) => (float[2,3] y) { [odd] t = my.ops.Odd (x) [after] y = Relu (t) }"""
    with workers():
        (verdict,) = (
            Prober(model_of(text)).probe(stub, {"what": "copy", "log": str(tmp_path / "log")}, ["after"]).values()
        )
    assert verdict.status is Status.UNKNOWN
    assert "the type of its input 't' is unknown" in verdict.reason


def test_nodes_differ_in_attributes_shapes_types_and_small_constants():
    def one(body, shape="2,3", kind="float", constants=""):
        text = f"""<ir_version: 10, opset_import: ["": 20]>
        agraph ({kind}[{shape}] x) => ({kind}[{shape}] y) {constants} {{ {body} }}"""
        return identity(model_of(text))

    same = one("[a] y = Relu (x)")
    assert one("[b] y = Relu (x)") == same
    assert one("[b] y = Relu (x)", shape="k,3") != same
    assert one("[b] y = Relu (x)", kind="double") != same
    assert one("y = Elu <alpha = 0.5> (x)") != one("y = Elu (x)")
    assert one("y = Clip (x, l)", constants="<float l = {0}>") == one("y = Clip (x, m)", constants="<float m = {0}>")
    assert one("y = Clip (x, l)", constants="<float l = {0}>") != one("y = Clip (x, l)", constants="<float l = {1}>")


def summary_of(target, *verdicts, **facts):
    nodes = tuple(NodeVerdict(name, "Relu", "", verdict, kind=kind) for name, verdict, kind in verdicts)
    return TargetSummary(target, None, "a table", nodes, **facts)


def test_only_open_questions_are_tried_and_the_source_says_so(stub, tmp_path):
    asked = (
        ("first", conditional("perhaps", remedy="r", source="a table"), "table"),
        ("log", supported("an engine"), "engine"),
        ("second", unknown("nobody knows", remedy="r"), ""),
    )
    with workers():
        (after,) = settle_by_probing(
            model_of(), [summary_of(stub, *asked)], options={"stub": {"what": "copy", "log": str(tmp_path / "log")}}
        )
    assert [node.kind for node in after.nodes] == ["probe", "engine", "probe"]
    assert after.runs is True
    assert after.source.startswith("a table, probed on Stub")
    assert (tmp_path / "log").read_text().count("built") == 1


def test_a_target_without_an_engine_says_that_nothing_was_tried(stub):
    asked = ("first", conditional("perhaps", remedy="r", source="a table"), "table")
    away = dataclasses.replace(stub, packages=("not_a_package_of_anybody",), extra="stub")
    for target, why in ((dataclasses.replace(stub, converter=None), "no engine of Stub"), (away, "is not installed")):
        (after,) = settle_by_probing(model_of(), [summary_of(target, asked)])
        assert after.nodes[0].verdict.status is Status.CONDITIONAL
        (finding,) = after.findings
        assert (finding.code, finding.severity) == ("DK228", "note")
        assert "1 node could be settled by a probe, and none was" in finding.message
        assert why in finding.message
    assert why_not_probed(stub, None, "Stub") is None


def node(verdict, kind, *others):
    return NodeVerdict("n", "Relu", "", verdict, kind=kind, others=others)


def test_what_a_probe_overrules_and_what_it_does_not():
    table = unsupported("not in the table", remedy="the table's remedy", source="a table")
    engine, ran = supported("the engine"), supported("probed (run)")
    # The probe settles a disagreement, and who said the opposite stays visible.
    after = settled_node(node(engine, "engine", table), ran)
    assert (after.verdict, after.kind, after.others) == (ran, "probe", (table,))
    # Wrong values overrule the engine that took it.
    wrong = unsupported("its values are wrong", remedy="r", source="probed (run)")
    assert settled_node(node(engine, "engine", table), wrong).verdict == wrong
    # A refusal alone does not overrule an engine that took it in the model, where it is folded or fused.
    refused = unsupported("no such layer", remedy="r", source="probed (refused)")
    assert settled_node(node(engine, "engine", table), refused).verdict == engine
    # What the engine refuses in the model stays refused.
    said = unsupported("rank unknown", remedy="r", source="the engine")
    after = settled_node(node(said, "engine", supported("a table")), ran)
    assert after.verdict.status is Status.UNSUPPORTED
    assert "alone it is taken" in after.verdict.reason
    # What was measured to be wrong for some values is not refuted by random ones; what was not measured is settled.
    rare = conditional("wrong over no elements", remedy="Where, after it", source="measured on OpenVINO 1")
    after = settled_node(node(rare, "engine"), ran)
    assert (after.verdict.status, after.kind) == (Status.CONDITIONAL, "engine")
    assert "it did not show" in after.verdict.reason
    untold = conditional("others did not", remedy="deploykit check --probe", source="measured on OpenVINO 1")
    assert settled_node(node(untold, "measurement"), ran).verdict == ran
    # The remedy of a condition that does not hold is better than a general one.
    after = settled_node(node(conditional("if", remedy="the table's remedy", source="a table"), "table"), refused)
    assert (after.verdict.status, after.verdict.remedy) == (Status.UNSUPPORTED, "the table's remedy")
    # Nothing settled: the old verdict stands and says what was tried.
    silent = unknown("trying it alone settled nothing: slow", remedy="r")
    after = settled_node(node(conditional("if", remedy="x", source="a table"), "table"), silent)
    assert (after.verdict.status, after.verdict.reason) == (Status.CONDITIONAL, f"if; {silent.reason}")
