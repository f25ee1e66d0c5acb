"""Rules about what engines take and get wrong: one node for which each holds, and one for which it does not."""

import dataclasses
import tomllib
from pathlib import Path

import onnx_ir as ir
import pytest
from onnx import parser

from deploykit.opsupport import Status, unsupported
from deploykit.opsupport.limits import load_limits

RULES = tomllib.loads(Path(__file__).with_name("limits.toml").read_text(encoding="utf-8"))["rule"]
TILE = "(float[2,2] x, int64[2] r) => (float[4,4] y) { y = Tile (x, r) }"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule['engine']}-{rule.get('told', 'nothing')}")
def test_a_rule_holds_where_it_should_and_only_there(last_of, rule):
    limits = load_limits(rule["engine"])
    verdict = limits.judge(last_of(rule["graph"], rule["opset"]))
    if "told" not in rule:
        assert verdict is None
        return
    assert rule["told"] in verdict.reason
    assert verdict.remedy
    assert verdict.source == limits.source


def test_branches_of_unequal_rank_stop_an_engine_where_the_condition_is_computed(nodes_of):
    branches = """then_branch = a () => (float[1] u) { u = Constant <value = float[1] {1.0}> () },
        else_branch = b () => (float w) { w = Constant <value = float {1.0}> () }"""
    node = nodes_of(f"(bool c) => (y) {{ y = If (c) <{branches}> }}")[0]
    assert "rank 1 in one branch and rank 0" in load_limits("tensorrt-rtx").judge(node).reason


def test_another_version_than_was_measured_makes_a_refusal_a_condition(last_of):
    limits = load_limits("openvino")
    node = last_of(TILE, 13)
    assert limits.judge(node, installed=limits.version).status is Status.UNSUPPORTED
    other = limits.judge(node, installed="2027.1.0")
    assert other.status is Status.CONDITIONAL
    assert "2027.1.0 was not measured" in other.reason


def test_operators_of_other_domains_are_not_meant(last_of):
    node = last_of("(double[2] x) => (y) { y = my.Tile (x) }", imports=', "my": 1')
    assert load_limits("openvino").judge(node) is None


def test_what_is_refused_already_stays_as_it_is(last_of):
    limits = load_limits("openvino")
    said = unsupported("the front-end has no Tile", remedy="none")
    model = ir.from_proto(parser.parse_model(f'<ir_version: 10, opset_import: ["": 13]> g {TILE}'))
    assert limits.correct(model, [said]) == [said]
    unclear = dataclasses.replace(said, status=Status.UNKNOWN)
    assert limits.correct(model, [unclear]) == [limits.judge(last_of(TILE, 13))]


def test_an_engine_without_rules_has_none():
    assert load_limits("ncnn") is None
