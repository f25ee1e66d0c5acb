"""What is told of a target: from summaries with verdicts that are made up."""

import dataclasses

import pytest

from deploykit.errors import MissingDependencyError, VendorError
from deploykit.opsupport import conditional, supported, unknown, unsupported
from deploykit.opsupport.findings import findings_of
from deploykit.opsupport.summary import NodeVerdict, TargetSummary
from deploykit.report import failure
from deploykit.target import get_target

YES = supported("engine 1.2")
NO = unsupported("no such kernel", remedy="use another operator", source="engine 1.2")
MAYBE = conditional("'x' is small", remedy="make it small", source="a table")
UNKNOWN = unknown("nobody tried it", remedy="probe it")


def summary(*verdicts, version=None, **facts):
    nodes = tuple(
        verdict if isinstance(verdict, NodeVerdict) else NodeVerdict(f"n{at}", "Conv", "", verdict, kind="engine")
        for at, verdict in enumerate(verdicts)
    )
    return TargetSummary(get_target("onnxruntime"), version, "engine 1.2", nodes, **facts)


def told(found, **how):
    return [(f.code, f.severity, f.node) for f in findings_of(found, "here", **how)]


def test_refused_node_is_an_error_that_says_who_speaks_and_what_to_do():
    (found,) = findings_of(summary(YES, NO), "here")
    assert (found.code, found.severity, found.target, found.node, found.op) == ("DK201", "error", "here", "n1", "Conv")
    assert found.message == "ONNX Runtime refuses Conv: no such kernel (says engine 1.2)"
    assert found.hint == "use another operator"


def test_refusal_is_a_warning_where_another_target_is_enough():
    assert told(summary(YES, NO), lenient=True) == [("DK201", "warning", "n1")]


def test_node_that_falls_with_another_is_a_note_after_its_cause():
    follows = dataclasses.replace(NO, follows="n1")
    assert told(summary(follows, NO)) == [("DK201", "error", "n1"), ("DK201", "note", "n0")]


def test_conditions_are_notes_one_for_all_nodes_alike():
    like = conditional("'y' is small", remedy="make it small", source="a table")
    found = findings_of(summary(MAYBE, like, like, like, like), "here")
    assert [(f.code, f.severity) for f in found] == [("DK209", "note")]
    assert "Conv 'n0', 'n1', 'n2' and 2 more like it on a condition: 'x' is small (says a table)" in found[0].message


def test_a_condition_that_holds_for_several_operators_is_said_once():
    narrowed = conditional("int64: narrowed", remedy="try it", source="a table")
    nodes = [NodeVerdict(op.lower(), op, "", narrowed, kind="table") for op in ("Gather", "Shape", "Gather")]
    other = NodeVerdict("c", "Cast", "", conditional("int64: narrowed", remedy="make it", source="a table"))
    found = findings_of(summary(*nodes, other), "here")
    assert [f.hint for f in found] == ["try it", "make it"]
    assert "takes 'gather', 'shape', 'gather' (Gather, Shape) on a condition" in found[0].message


def test_unknown_nodes_are_counted_apart_and_are_a_warning():
    found = summary(YES, UNKNOWN)
    assert told(found) == [("DK210", "warning", "n1")]
    assert found.runs is None
    assert found.as_dict()["unknown"] == 1
    assert found.as_dict()["verdict"] == "unknown"


def test_unknown_nodes_of_a_target_that_does_not_run_are_a_note():
    assert told(summary(NO, UNKNOWN)) == [("DK201", "error", "n0"), ("DK210", "note", "n1")]


@pytest.mark.parametrize(
    ("believed", "other", "phrase"),
    [
        (YES, unsupported("not listed", remedy="-", source="table 3"), "engine 1.2 says that it runs on ONNX Runtime"),
        (NO, supported("table 3"), "engine 1.2 says that it does not run on ONNX Runtime (no such kernel)"),
    ],
)
def test_dispute_tells_who_says_what_and_who_is_believed(believed, other, phrase):
    nodes = [NodeVerdict(f"n{at}", "Conv", "", believed, kind="engine", others=(other,)) for at in range(5)]
    (found,) = [f for f in findings_of(summary(*nodes), "here") if f.code == "DK217"]
    assert found.severity == "note"
    assert phrase in found.message
    assert "Conv 'n0', 'n1', 'n2' and 2 more like it" in found.message
    assert "table 3 that it" in found.message
    assert "the first is believed, because it is the engine itself" in found.message


def test_engine_that_is_not_installed_is_named_with_what_brings_it():
    missing = MissingDependencyError("the package 'x' is needed", hint="pip install x")
    found = summary(YES, version="cpu", problem=missing)
    (said,) = findings_of(found, "here")
    assert (said.code, said.severity, said.hint) == ("DK208", "note", "pip install x")
    assert "engine 1.2 speaks in its place" in said.message
    assert found.verdict == "runs whole"


def test_engine_that_failed_leaves_the_verdict_open():
    found = summary(YES, version="cpu", problem=VendorError("it crashed"))
    assert told(found) == [("DK208", "warning", None)]
    assert found.verdict == "unknown"
    assert summary(NO, version="cpu", problem=VendorError("it crashed")).verdict == "does not run"


def test_what_else_a_target_needs_is_a_warning_and_a_refused_model_an_error():
    besides = (failure("DK520", "a bound is missing", target="x"), failure("DK202", "no"))
    assert told(summary(YES, findings=besides)) == [("DK520", "warning", None), ("DK202", "error", None)]
    assert told(summary(YES, findings=besides), lenient=True)[1] == ("DK202", "warning", None)


LEFT = NodeVerdict("left", "Erf", "", NO, macs=30, fallback=supported("cpu"))
STUCK = NodeVerdict("stuck", "Odd", "my.ops", NO, fallback=unsupported("unheard of", remedy="-", source="cpu"))
TAKEN = NodeVerdict("taken", "Conv", "", YES, macs=70, fallback=supported("cpu"))


def provider(*nodes, partitions):
    return summary(*nodes, version="cuda", partitions=partitions, leaves_to="ONNX Runtime (cpu)")


def test_nodes_left_to_the_other_engine_are_a_warning_and_no_refusal():
    found = provider(TAKEN, LEFT, TAKEN, partitions=2)
    assert told(found) == [("DK212", "warning", None), ("DK218", "note", "left")]
    assert found.runs
    assert found.verdict == "runs in 2 partitions"
    assert found.macs_share == pytest.approx(140 / 170)
    assert "1 of 3 nodes is left to ONNX Runtime (cpu): 1 " in findings_of(found, "here")[0].message


def test_one_piece_with_something_left_is_not_the_whole():
    assert provider(TAKEN, LEFT, partitions=1).verdict == "runs in 1 partition"


def test_target_that_takes_nothing_says_so():
    assert provider(LEFT, partitions=0).verdict == "runs elsewhere"
    assert told(provider(LEFT, partitions=0)) == [("DK219", "warning", None), ("DK218", "note", "left")]


def test_node_that_both_engines_refuse_stops_the_model():
    found = provider(TAKEN, STUCK, partitions=1)
    assert found.verdict == "does not run"
    (said,) = findings_of(found, "here")
    assert said.code == "DK201"
    assert "ONNX Runtime (cpu) does not take it either: unheard of" in said.message


def test_node_left_to_an_engine_that_nobody_knows_of_is_unknown():
    node = dataclasses.replace(LEFT, fallback=UNKNOWN)
    found = provider(TAKEN, node, partitions=1)
    assert found.verdict == "unknown"
    assert ("DK210", "warning", "left") in told(found)
