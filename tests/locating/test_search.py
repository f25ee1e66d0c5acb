"""The search on graphs whose differences are known: what it finds, and how little it looks at."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from deploykit.locating.lineage import lineage_of
from deploykit.locating.rows import Row
from deploykit.locating.search import Search


def chain(length):
    """A model of that many Neg nodes, one behind the other."""
    steps = "\n".join(f"t{i + 1} = Neg (t{i})" for i in range(length))
    text = f'<ir_version: 8, opset_import: ["" : 17]> agraph (float[4] t0) => (float[4] t{length}) {{ {steps} }}'
    return ir.from_proto(onnx.parser.parse_model(text))


def searched(model, bad, *, unmatched=(), budget=1 << 20, output):
    """(what is found, names looked at by look) when the tensors of `bad` differ."""
    lineage = lineage_of(model, {})
    looks = []

    def compare(names):
        looks.append(list(names))
        return {name: Row(name, name not in bad, False, 1.0, 1.0, 1.0) for name in names}

    search = Search(lineage, set(lineage.maker) - set(unmatched), compare, lambda row: not row.agrees, budget=budget)
    search.look([output])
    return search.first(output), looks


@pytest.mark.parametrize("fault", [1, 2, 499, 998, 1000])
def test_one_chain_is_searched_in_sections(fault):
    bad = {f"t{i}" for i in range(fault, 1001)}
    (tensor, parents), looks = searched(chain(1000), bad, output="t1000")
    assert tensor == f"t{fault}"
    assert parents == ([f"t{fault - 1}"] if fault > 1 else [])
    assert sum(map(len, looks)) <= 40


def test_a_look_holds_no_more_than_the_budget():
    bad = {f"t{i}" for i in range(300, 1001)}
    (tensor, _), looks = searched(chain(1000), bad, output="t1000", budget=32)  # two tensors of 16 bytes
    assert tensor == "t300"
    assert max(map(len, looks)) <= 2


def test_a_difference_that_vanishes_again_is_not_the_one():
    bad = {"t5", "t6"} | {f"t{i}" for i in range(70, 101)}  # what differs at t5 is gone at t7
    assert searched(chain(100), bad, output="t100")[0][0] == "t70"


BRANCHES = """<ir_version: 8, opset_import: ["" : 17]> agraph (float[4] x) => (float[4] y) {
  a1 = Neg (x)  a2 = Abs (a1)  a3 = Neg (a2)  a4 = Abs (a3)
  b1 = Neg (x)  b2 = Abs (b1)  b3 = Neg (b2)  b4 = Abs (b3)
  y = Add (a4, b4)
}"""


@pytest.mark.parametrize("fault", ["a2", "b3"])
def test_either_branch(fault):
    model = ir.from_proto(onnx.parser.parse_model(BRANCHES))
    branch, number = fault
    bad = {"y"} | {f"{branch}{i}" for i in range(int(number), 5)}
    (tensor, parents), _ = searched(model, bad, output="y")
    assert (tensor, parents) == (fault, [f"{branch}{int(number) - 1}"])


def test_fused_nodes_are_walked_through_to_the_nearest_tensors_that_can_be_compared():
    model = ir.from_proto(onnx.parser.parse_model(BRANCHES))
    (tensor, parents), _ = searched(model, {"y", "b4"}, unmatched=("b2", "b3", "a4"), output="y")
    assert (tensor, parents) == ("b4", ["b1"])
    steps = lineage_of(model, {}).between(tensor, parents)
    assert [step.outputs for step in steps] == [("b2",), ("b3",), ("b4",)]
