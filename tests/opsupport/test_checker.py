import onnx
import pytest
from onnx import parser

from deploykit import lazy
from deploykit.errors import VendorError
from deploykit.opsupport import Status, conditional, engines, sources, supported, unknown, unsupported
from deploykit.opsupport.checker import NodeVerdict, TargetSummary, check_model
from deploykit.report import failure
from deploykit.target import get_target

BRANCHES = """<ir_version: 10, opset_import: ["": 20]>
agraph (bool c, float[2,4] x) => (float[2,8] y)
    <float[4,8] w = {1,2,3,4,5,6,7,8, 1,2,3,4,5,6,7,8, 1,2,3,4,5,6,7,8, 1,2,3,4,5,6,7,8}>
{
    [choose] y = If (c) <
        then_branch = yes () => (float[2,8] a) { [inner] a = MatMul (x, w) },
        else_branch = no () => (float[2,8] b) { b = MatMul (x, w) }
    >
}"""


@pytest.fixture
def branches(tmp_path):
    onnx.save(parser.parse_model(BRANCHES), tmp_path / "branches.onnx")
    return tmp_path / "branches.onnx"


def summary(*verdicts, partitions=None, problem=None):
    nodes = tuple(NodeVerdict(f"n{i}", "Conv", "", verdict, macs) for i, (verdict, macs) in enumerate(verdicts))
    return TargetSummary(get_target("openvino"), None, "a test", nodes, partitions, problem=problem)


REFUSED = unsupported("no", remedy="change it")
UNJUDGED = unknown("not reached", remedy="check again")
CONDITION = conditional("k is constant", remedy="fold it")


@pytest.mark.parametrize(
    ("found", "runs", "verdict"),
    [
        (summary((supported(), 1), (CONDITION, 1), partitions=1), True, "runs whole"),
        (summary((supported(), 1), partitions=3), True, "runs in 3 partitions"),
        (summary((supported(), 1), (REFUSED, 1), (UNJUDGED, 1)), False, "does not run"),
        (summary((supported(), 1), (UNJUDGED, 1)), None, "unknown"),
        (summary((UNJUDGED, 1), problem=VendorError("crashed")), None, "unknown"),
    ],
)
def test_verdict_of_a_target_follows_from_its_nodes(found, runs, verdict):
    assert found.runs is runs
    assert found.verdict == verdict


def test_model_refused_as_a_whole_does_not_run():
    nodes = (NodeVerdict("n", "Conv", "", UNJUDGED),)
    refusal = failure("DK202", "its types contradict each other")
    assert TargetSummary(get_target("openvino"), None, "a test", nodes, findings=(refusal,)).runs is False


def test_share_of_work_is_that_of_the_nodes_taken():
    assert summary((supported(), 30), (CONDITION, 20), (REFUSED, 50)).macs_share == 0.5
    assert summary((supported(), 0)).macs_share is None


def test_body_of_a_refused_node_does_not_count_as_taken():
    nodes = (
        NodeVerdict("choose", "If", "", REFUSED),
        NodeVerdict("inner", "MatMul", "", supported(), 10, ("choose",)),
        NodeVerdict("after", "MatMul", "", supported(), 30),
    )
    assert TargetSummary(get_target("openvino"), None, "a test", nodes).macs_share == 0.75


def test_every_node_of_every_body_has_a_verdict_in_every_target(branches):
    found = check_model(branches, ["onnxruntime", "openvino"])
    for target in found:
        assert [(node.node, node.op) for node in target.nodes][:2] == [("choose", "If"), ("inner", "MatMul")]
        assert len(target.nodes) == 3
        assert sum(node.macs for node in target.nodes) == 2 * 2 * 4 * 8
        assert target.nodes[1].inside == ("choose",)
        assert target.of(Status.SUPPORTED) == list(target.nodes)
    assert [target.version for target in found] == ["cpu", None]
    assert found[0].as_dict()["verdict"] == "runs whole"


def test_target_that_is_not_installed_is_judged_by_its_tables_and_says_what_to_install(branches, monkeypatch):
    monkeypatch.setattr(lazy, "installed", lambda package: package != "openvino")
    missing, there = check_model(branches, ["openvino", "onnxruntime"])
    assert missing.source.endswith("table") or missing.source.startswith("measured")
    assert {node.kind for node in missing.nodes} <= {"measurement", "table"}
    assert "deploykit[openvino]" in missing.problem.hint
    assert there.runs


def test_target_that_nobody_speaks_about_is_unknown(branches, monkeypatch):
    monkeypatch.setattr(sources, "load_measured", lambda engine: None)
    monkeypatch.setattr(lazy, "installed", lambda package: package != "coremltools")
    (found,) = check_model(branches, ["coreml"])
    assert len(found.of(Status.UNKNOWN)) == 3
    assert found.runs is None
    assert not found.spoke


def test_source_that_crashes_leaves_its_target_unknown(branches, monkeypatch):
    def crash(name, *args, **kwargs):
        raise VendorError(f"{name} crashed with SIGSEGV", code="DK511")

    monkeypatch.setattr(engines, "run_isolated", crash)
    (found,) = check_model(branches, ["openvino"])
    assert found.problem.code == "DK511"
    assert found.runs is None
