"""Which tensor stands for which, where names do not say it."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from deploykit.locating.matching import by_lineage, differences, without_renumbered

TWINS = """<ir_version: 8, opset_import: ["" : 17]>
agraph (float[1,4] x) => (float[1,4] y) {
  a = MatMul (x, w1)  b = MatMul (x, w2)  p = Relu (a)  q = Relu (b)  y = Sub (p, q)
}"""
RENAMED = {"a": "v0", "b": "v1", "p": "v2", "q": "v3", "w1": "c0", "w2": "c1"}


def model(text, weights, order=None):
    made = onnx.parser.parse_model(text)
    made.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    if order:
        nodes = [made.graph.node[i] for i in order]
        del made.graph.node[:]
        made.graph.node.extend(nodes)
    return ir.from_proto(made)


def renamed(text):
    words = text.split()
    return " ".join(RENAMED.get(word.strip("(),"), word.strip("(),")).join(_around(word)) for word in words)


def _around(word):
    core = word.strip("(),")
    before, _, after = word.partition(core) if core else (word, "", "")
    return before, after


W = {name: np.full((4, 4), value, np.float32) for name, value in (("w1", 1.0), ("w2", 2.0))}


def test_twins_are_told_apart_by_their_constants_whatever_their_order():
    reference = model(TWINS, W)
    text = renamed(TWINS)
    for order in ([0, 1, 2, 3, 4], [1, 0, 3, 2, 4]):
        candidate = model(text, {"c0": W["w1"], "c1": W["w2"]}, order)
        found = by_lineage(reference, candidate, {"y": "y"}, ())
        assert found == {"a": "v0", "b": "v1", "p": "v2", "q": "v3"}


def test_with_another_constant_the_order_decides():
    reference = model(TWINS, W)
    candidate = model(renamed(TWINS), {"c0": W["w1"] * 3, "c1": W["w2"]})
    assert by_lineage(reference, candidate, {}, ())["a"] == "v0"


def test_a_node_of_the_same_name_is_the_same_unless_it_reads_something_else():
    text = '<ir_version: 8, opset_import: ["" : 17]> agraph (float[4] x) => (float[4] y) { NODES }'
    body = "a = Neg (x) b = Abs (a) c = Exp (b) y = Tanh (c)"
    reference = model(text.replace("NODES", body), {})
    fused = model(text.replace("NODES", "m = Celu (x) n = Exp (m) y = Tanh (n)"), {})
    for graph, names in ((reference, ("neg", "abs", "exp", "tanh")), (fused, ("celu", "exp", "tanh"))):
        for node, name in zip(graph.graph, names, strict=True):
            node.name = name
    assert by_lineage(reference, fused, {"y": "y"}, {"exp", "tanh"}) == {"c": "n"}
    assert by_lineage(reference, fused, {"y": "y"}, ()) == {}
    assert by_lineage(reference, fused, {"y": "y", "a": "m"}, {"exp"}) == {}  # the reference's Exp does not read a


def test_numbers_given_anew_are_no_names():
    text = '<ir_version: 8, opset_import: ["" : 17]> agraph (float[4] x) => (float[4] y) { NODES }'
    reference = model(text.replace("NODES", "a = Neg (x) b = Abs (a) y = Exp (b)"), {})
    candidate = model(text.replace("NODES", "a = Abs (x) y = Exp (a)"), {})
    for graph, names in ((reference, "12"), (candidate, "1")):
        for node, name in zip(list(graph.graph)[:-1], names, strict=True):
            node.outputs[0].name = name
    assert without_renumbered({"1": "1", "y": "y"}, reference, candidate) == {"y": "y"}


def test_differences_in_words():
    text = """<ir_version: 8, opset_import: ["" : 17]>
    agraph (float[1,2,4,4] x) => (float[1,2,4,4] y) { y = Conv <pads = PADS> (x, w) }"""
    weights = np.ones((2, 2, 3, 3), np.float32)
    other = weights.copy()
    other[0, 0, 0, 0] = 1.25
    one = model(text.replace("PADS", "[1,1,1,1]"), {"w": weights})
    two = model(text.replace("PADS", "[2,2,0,0]"), {"w": other})
    assert differences(list(one.graph), two.graph[0]) == [
        "attribute pads is [2, 2, 0, 0], [1, 1, 1, 1] in the reference",
        "constant 'w' (input 1) differs in 1 of 36 values, by up to 0.25",
    ]
    assert differences(list(one.graph), one.graph[0]) == []
