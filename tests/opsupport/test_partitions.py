"""The partitioner: hand-made traps, and what must hold for every graph."""

import graphlib
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import parser

from deploykit import graph
from deploykit.opsupport.partitions import convex_groups, wiring_of


def groups(text, taken):
    """`a b<a c<ab`: nodes in order, each with what it reads."""
    before = {}
    for word in text.split():
        name, _, read = word.partition("<")
        before[name] = tuple(read)
    return ["".join(group) for group in convex_groups(before, set(taken))]


@pytest.mark.parametrize(
    ("text", "taken", "expected"),
    [
        ("a b<a c<b", "abc", ["abc"]),
        ("a b<a c<b", "ac", ["a", "c"]),
        # The trap: a and c share an edge, and a path leaves through b, which another engine runs.
        ("a b<a c<ab", "ac", ["a", "c"]),
        ("a b<a c<ab d<c", "acd", ["a", "cd"]),
        # Nothing leaves and comes back: the node left out reads the input alone.
        ("a b c<ab", "ac", ["ac"]),
        ("a b<a c<a d<bc", "abd", ["ab", "d"]),
        # Branches that nothing joins are pieces of their own.
        ("a b", "ab", ["a", "b"]),
        # c could run with a or with e; with both, the path a-b-e would leave and come back.
        ("a b<a c<a e<bc", "ace", ["ac", "e"]),
        ("a b<a c<b d<b", "", []),
        ("a b<a c<b d<c", "bcd", ["bcd"]),
    ],
)
def test_groups_of_small_graphs(text, taken, expected):
    assert groups(text, taken) == expected


def test_join_that_becomes_possible_later_is_made():
    # d reads a and b; b reads the foreign x, which reads nothing: all three can be one piece.
    assert groups("a x b<ax d<ab", "abd") == ["abd"]


@st.composite
def graphs(draw):
    size = draw(st.integers(1, 12))
    before = {
        str(at): tuple(map(str, sorted(draw(st.sets(st.integers(0, at - 1), max_size=3))))) if at else ()
        for at in range(size)
    }
    return before, draw(st.sets(st.sampled_from(sorted(before))))


def cyclic(before, home):
    """Whether the graph of pieces and single nodes has a cycle."""
    edges = {}
    for name, sources in before.items():
        edges.setdefault(home[name], set()).update(home[source] for source in sources if home[source] != home[name])
    try:
        tuple(graphlib.TopologicalSorter(edges).static_order())
    except graphlib.CycleError:
        return True
    return False


@given(graphs())
@settings(max_examples=300, deadline=None)
def test_groups_are_a_partition_connected_convex_and_maximal(case):
    before, taken = case
    found = convex_groups(before, taken)
    assert sorted(itertools.chain(*found)) == sorted(taken)
    home = {name: name for name in before}
    for number, group in enumerate(found):
        home |= dict.fromkeys(group, number)
    assert not cyclic(before, home)
    for number, group in enumerate(found):
        reached, pending = {group[0]}, [group[0]]
        while pending:
            name = pending.pop()
            near = {*before[name], *(other for other in before if name in before[other])}
            pending += [other for other in near & set(group) if other not in reached]
            reached |= near & set(group)
        assert reached == set(group)
        for other in range(number):
            joined = {name: other if place == number else place for name, place in home.items()}
            touching = any({home[name], home[source]} == {number, other} for name in before for source in before[name])
            assert not touching or cyclic(before, joined)


def test_long_chains_with_shortcuts_take_no_time():
    before = {str(at): tuple(str(source) for source in (at - 1, at - 3) if source >= 0) for at in range(5000)}
    left = {str(at) for at in range(0, 5000, 50)}
    assert len(convex_groups(before, before.keys() - left)) == 100


BRANCHES = """<ir_version: 10, opset_import: ["": 20, "my": 1]>
g (bool c, float[2] x) => (float[2] y) {
    [first] a = Relu (x)
    [choose] b = If (c) <
        then_branch = t () => (float[2] p) { [inside] p = Abs (a) },
        else_branch = e () => (float[2] q) { [other] q = Neg (a) }
    >
    [call] d = my.twice (b)
    [last] y = Relu (d)
}
<domain: "my", opset_import: ["": 20]>
twice (v) => (w) { [body] w = Add (v, v) }
"""


@pytest.mark.parametrize(
    ("refused", "pieces"),
    [
        ("", 1),
        ("inside", 3),  # [first], the other branch, [call, last]
        ("choose", 4),  # [first], each branch, [call, last]
        ("body", 2),  # [first, choose], [last]
        ("first", 1),  # a branch reads it from outside: the If waits for it
    ],
)
def test_bodies_belong_to_their_holder_or_are_graphs_of_their_own(refused, pieces):
    import onnx_ir as ir

    model = graph.name_nodes(ir.from_proto(parser.parse_model(BRANCHES)))
    names = {node.name for node in graph.all_nodes(model)}
    assert names == {"first", "choose", "inside", "other", "call", "last", "body"}
    assert wiring_of(model).partitions(names - {refused}) == pieces


def test_constants_are_neither_pieces_nor_in_the_way():
    import onnx_ir as ir

    text = """<ir_version: 10, opset_import: ["": 20]>
    g (float[2] x) => (float[2] y) {
        [c] c = Constant <value_floats = [1.0, 2.0]> ()
        [d] d = Neg (c)
        [first] a = Relu (x)
        [odd] b = Erf (d)
        [last] y = Add (a, b)
    }"""
    wiring = wiring_of(ir.from_proto(parser.parse_model(text)))
    assert wiring.partitions({"c", "d", "first", "last"}) == 2
    assert wiring.partitions({"c", "d", "first", "last"}, constants={"c", "d"}) == 1
