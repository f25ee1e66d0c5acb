"""A target's summary as the JSON contract has it."""

import pytest

from deploykit.opsupport import supported, unsupported
from deploykit.opsupport.summary import NodeVerdict, TargetSummary
from deploykit.target import get_target

YES, NO = supported("x"), unsupported("no", remedy="-", source="x")


def summary(*nodes, version="cpu", **facts):
    return TargetSummary(get_target("onnxruntime"), version, "x", nodes, **facts)


def test_counts_are_of_the_target_and_the_verdict_of_all_that_run_it():
    nodes = (
        NodeVerdict("a", "Conv", "", YES, macs=10, fallback=YES),
        NodeVerdict("b", "Erf", "", NO, macs=30, fallback=YES),
    )
    row = summary(*nodes, version="cuda", partitions=1, leaves_to="ONNX Runtime (cpu)").as_dict()
    assert row == {
        "name": "onnxruntime",
        "version": "cuda",
        "source": "x",
        "supported": 1,
        "conditional": 0,
        "unsupported": 1,
        "unknown": 0,
        "nodes": 2,
        "macs_share": 0.25,
        "partitions": 1,
        "verdict": "runs in 1 partition",
    }


def test_body_of_a_node_that_is_left_behind_still_counts_for_the_target():
    nodes = (
        NodeVerdict("choose", "If", "", NO, fallback=YES),
        NodeVerdict("inner", "MatMul", "", YES, macs=10, inside=("choose",), fallback=YES),
    )
    assert summary(*nodes, version="cuda", partitions=1).macs_share == 1
    alone = (NodeVerdict("choose", "If", "", NO), NodeVerdict("inner", "MatMul", "", YES, macs=10, inside=("choose",)))
    assert summary(*alone).macs_share == 0


@pytest.mark.parametrize(("version", "title"), [("cpu", "ONNX Runtime"), ("cuda", "ONNX Runtime (cuda)")])
def test_title_names_the_version_that_is_not_the_usual_one(version, title):
    assert summary(version=version).title == title


def test_partitions_are_of_what_runs():
    node = NodeVerdict("a", "Conv", "", YES)
    assert summary(node).as_dict()["partitions"] == 1
    assert summary(NodeVerdict("a", "Conv", "", NO), partitions=3).as_dict()["partitions"] is None


def test_operator_names_its_domain_where_it_is_not_the_standard():
    assert NodeVerdict("a", "Gelu", "com.microsoft", YES).operator == "com.microsoft.Gelu"
    assert NodeVerdict("a", "Gelu", "ai.onnx", YES).operator == "Gelu"
