import pytest

from deploykit.opsupport import Registry, Status, Verdict, conditional, supported, unknown, unsupported
from deploykit.opsupport.registry import newest_opset


@pytest.fixture
def rules():
    registry = Registry()

    @registry.lowers("AveragePool", since=(7, 10, 11))
    def old(node):
        return "old"

    @registry.lowers("AveragePool", since=19, when=lambda node: supported())
    def new(node):
        return "new"

    @registry.lowers("Gelu", "FastGelu", since=1, domain="com.microsoft")
    def gelu(node):
        return "gelu"

    return registry


def test_opset_selects_the_revision_by_the_onnx_schema_history(rules):
    assert rules.lookup("", "AveragePool", 9).function(None) == "old"
    assert rules.lookup("ai.onnx", "AveragePool", 18).function(None) == "old"
    assert rules.lookup("", "AveragePool", 19).function(None) == "new"
    assert rules.lookup("", "AveragePool", 21).when is not None


def test_revision_without_a_rule_is_not_treated_like_its_predecessor(rules):
    assert rules.lookup("", "AveragePool", 22) is None


def test_opset_newer_than_all_that_is_known_has_no_rule():
    rules = Registry()
    rules.lowers("Relu", since=14)(print)
    newest = newest_opset("")
    assert rules.lookup("", "Relu", newest) is not None
    assert rules.lookup("ai.onnx", "Relu", newest + 1) is None
    assert newest_opset("com.microsoft") is None


def test_operator_of_another_domain_takes_the_newest_rule_not_newer_than_the_opset(rules):
    assert rules.lookup("com.microsoft", "FastGelu", 1).function(None) == "gelu"
    assert rules.lookup("", "FastGelu", 20) is None


def test_a_revision_has_one_rule_only(rules):
    with pytest.raises(ValueError, match="has a rule already"):
        rules.lowers("AveragePool", since=10)(lambda node: None)


def test_iteration_lists_every_rule_once_in_order(rules):
    assert [(entry.op, entry.since) for entry in rules] == [
        ("AveragePool", (7, 10, 11)),
        ("AveragePool", (19,)),
        ("FastGelu", (1,)),
        ("Gelu", (1,)),
    ]
    assert len(rules) == 4
    assert rules.revisions("", "AveragePool") == (7, 10, 11, 19)


@pytest.mark.parametrize("status", [Status.CONDITIONAL, Status.UNSUPPORTED, Status.UNKNOWN])
def test_a_verdict_against_a_node_needs_reason_and_remedy(status):
    with pytest.raises(ValueError, match="needs a reason and a remedy"):
        Verdict(status, reason="rank 6")
    assert Verdict(status, "rank 6", "reshape first").reason == "rank 6"


def test_verdict_survives_json():
    for verdict in (
        supported("here"),
        conditional("k must be constant", remedy="fold it"),
        unsupported("no If", remedy="remove it"),
        unknown("no table", remedy="convert to find out"),
    ):
        assert Verdict.from_dict({"node": "n", **verdict.as_dict()}) == verdict
