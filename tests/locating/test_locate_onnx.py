"""Faults planted in ONNX candidates: the node that holds them is found, among a thousand."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper


def test_one_weight_among_a_thousand_nodes(locate, model, faults):
    found = locate(model, faults["other_weight"](model, 800, 1.05))
    first = found["first"]
    assert (first["source_node"], first["op"]) == ("/block.100/Conv_801", "Conv")
    assert first["inputs"] == ["/block.100/Mul_800/out"]
    assert not found["alone"]["agrees"]
    (difference,) = first["differences"]
    assert difference.startswith("constant 'w800' (input 1) differs in 576 of 576 values")
    assert found["looks"] <= 8
    before = [row for row in found["neighbourhood"] if not row["agrees"]]
    assert [row["first"] for row in before] == [True] + [False] * (len(before) - 1)
    assert found["added_up"] == []


def test_an_attribute(locate, small, faults):
    def shift(node):
        node.attribute[0].CopyFrom(helper.make_attribute("pads", [2, 2, 0, 0]))

    first = locate(small, faults["changed"](small, "/block.40/Conv_321", shift))["first"]
    assert first["source_node"] == "/block.40/Conv_321"
    assert first["differences"] == ["attribute pads is [2, 2, 0, 0], [1, 1, 1, 1] in the reference"]


def test_nan_is_found_where_it_is_born(locate, small, faults):
    def logarithm(node):
        node.op_type = "Log"

    found = locate(small, faults["changed"](small, "/block.30/Relu_242", logarithm))
    first = found["first"]
    assert (first["source_node"], first["op"], first["source_op"]) == ("/block.30/Relu_242", "Log", "Relu")
    assert "NaN" in first["problem"]
    assert first["max_abs"] is None
    assert first["values"][1] == "nan"


def test_a_fault_in_a_model_without_one_name_of_the_reference(locate, model, faults):
    found = locate(model, faults["renamed"](faults["other_weight"](model, 480, 1.05)))
    assert found["first"]["source_node"] == "/block.60/Conv_481"
    assert found["first"]["node"] == "n480"
    assert (found["matched"], found["tensors"]) == (1000, 1000)


def test_an_overflow_of_half_precision(locate, faults):
    loud = faults["deep"](decay=0.95)  # its values grow beyond 65504 near the end
    found = locate(loud, faults["halved"](loud), row="fp16")
    first = found["first"]
    assert first["not_finite"]
    reference, candidate = first["values"]
    assert candidate in ("inf", "-inf")
    assert abs(reference) > 65504
    assert not found["alone"]["agrees"]


def test_a_fault_behind_rounding_that_adds_up_to_more_than_the_limit(locate, small, faults):
    exact = locate(small, faults["halved"](small), row="fp16", rtol=1e-3)
    assert exact["alone"]["agrees"]  # no node is at fault: each agrees on the reference's own values
    assert exact["added_up"][0] == exact["first"]["tensor"]
    planted = locate(small, faults["halved"](faults["other_weight"](small, 400)), row="fp16", rtol=1e-3)
    assert planted["first"]["source_node"] == "/block.50/Conv_401"
    assert not planted["alone"]["agrees"]
    assert planted["added_up"]


def test_models_that_agree_have_nothing_to_locate(locate, small, faults):
    assert locate(small, faults["renamed"](small))["first"] is None


BODIES = """<ir_version: 8, opset_import: ["" : 17]>
agraph (float[4] x, int64 n, bool c) => (float[4] y) <float[4] w = {1,2,3,4}> {
  a = Mul (x, w)
  trip = Identity (n)
  b = Loop (trip, c, a) <body = g (int64 i, bool ci, float[4] v) => (bool co, float[4] vo)
    <float k = {LOOP}> { co = Identity (ci)  t = Mul (v, k)  vo = Add (t, a) }>
  s = ReduceSum <keepdims=0> (b)
  z = Constant <value = float {0.0}> ()
  p = Greater (s, z)
  d = If (p) <then_branch = tb () => (float[4] q) { q = Exp (b) }, else_branch = eb () => (float[4] r) { r = ELSE (b) }>
  y = Tanh (d)
}"""


@pytest.mark.parametrize(("loop", "other", "op"), [("0.75", "Neg", "Loop"), ("0.5", "Abs", "If")])
def test_the_node_that_holds_a_faulty_body_is_named(locate, tmp_path, loop, other, op):
    def made(factor, operator):
        return onnx.parser.parse_model(BODIES.replace("LOOP", factor).replace("ELSE", operator))

    data = tmp_path / "data.npz"
    np.savez(data, x=np.array([-0.1, -0.2, 0.3, -0.3], np.float32), n=np.array(3), c=np.array(True))
    found = locate(made("0.5", "Neg"), made(loop, other), data=str(data))
    assert found["first"]["source_op"] == op


def test_equal_infinities_are_no_divergence(locate):
    text = """<ir_version: 8, opset_import: ["" : 17]>
    agraph (float[1,4] x) => (float[1,4] y) <float[4] mask = {0,-1,0,-1}, float k = {K}> {
      m = Add (x, mask)  s = Softmax (m)  y = Mul (s, k)
    }"""
    made = [onnx.parser.parse_model(text.replace("K", k)) for k in ("1.0", "1.5")]
    hidden = numpy_helper.from_array(np.array([0, -np.inf, 0, -np.inf], np.float32), "mask")
    for one in made:
        one.graph.initializer[0].CopyFrom(hidden)
    first = locate(*made)["first"]
    assert (first["tensor"], first["source_op"]) == ("y", "Mul")
