"""Names that nodes share are given up by all but the first."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from deploykit import graph
from deploykit.optimizers.rewrites.unique_names import UniqueNames, named

TEXT = """<ir_version: 8, opset_import: ["": 17]> g (float[2] x, bool c) => (float[2] y) {
    [one] a = Exp (x) [one] b = Neg (a)
    [two] y = If (c) <
        then_branch = t () => (float[2] d) { [one] d = Abs (b) },
        else_branch = e () => (float[2] f) { [three] f = Relu (b) }> }"""


@pytest.fixture
def model() -> ir.Model:
    return named(ir.from_proto(onnx.parser.parse_model(TEXT)))


def test_only_later_namesakes_are_renamed_in_bodies_too(model) -> None:
    rewrite = UniqueNames()
    renamed = [node.op_type for node in graph.all_nodes(model) if rewrite.applies(node, model)]
    assert renamed == ["Neg", "Abs"]
    names = [node.name for node in graph.all_nodes(model)]
    assert len(set(names)) == len(names) == 5
    assert {"one", "two", "three"} < set(names)


def test_one_change_names_them_and_nothing_else_happens(model) -> None:
    before = ir.to_proto(model).SerializeToString()
    (change,) = UniqueNames().apply(model, list(graph.all_nodes(model)))
    assert (change.removed, change.added) == ((), ())
    assert all(name in change.text for name in ("one_1", "one_2"))
    assert ir.to_proto(model).SerializeToString() == before


def test_a_model_with_a_name_for_each_node_is_left_alone() -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { a = Exp (x) [n] y = Neg (a) }'
    model = named(ir.from_proto(onnx.parser.parse_model(text)))
    assert not any(UniqueNames().applies(node, model) for node in graph.all_nodes(model))
    assert UniqueNames().apply(model, list(graph.all_nodes(model))) == []
