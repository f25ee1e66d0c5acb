"""Each check of attributes: a node where it holds, one where it does not, one where it cannot be told."""

import dataclasses

import pytest
from hypothesis import given, strategies

from deploykit.opsupport.attribute_checks import ATTRIBUTE_CHECKS
from deploykit.opsupport.conditions import holds, outcome

CONV = "(float[1,4,8,8] x, float[4,4,3,3] w) => (float[1,4,n,m] y) {{ y = Conv {attributes} (x, w) }}"
RESIZE = """(float[1,1,4,4] x) => (y)
    <float[4] scales = {{1, 1, 2, 2}}> {{ y = Resize {attributes} (x, , scales) }}"""
LSTM = """(float[3,1,2] x, float[{d},8,2] w, float[{d},8,2] r) => (y)
    {{ y = LSTM <hidden_size = 2 {attributes}> (x, w, r) }}"""
EINSUM = '(float[2,2] x, float[2,2] y) => (z) {{ z = Einsum <equation = "{equation}"> (x, y) }}'


def conv(attributes=""):
    return CONV.format(attributes=f"<{attributes}>" if attributes else "")


def resize(attributes=""):
    return RESIZE.format(attributes=f"<{attributes}>" if attributes else "")


def lstm(attributes="", directions=1):
    return LSTM.format(attributes=attributes and f", {attributes}", d=directions)


def einsum(equation):
    return EINSUM.format(equation=equation)


MODE = {"attr": "mode", "values": ["nearest", "linear"], "default": "nearest"}
WHEN = {
    "attr": "nearest_mode",
    "values": ["floor"],
    "default": "round_prefer_floor",
    "when": {"attr": "mode", "equals": "nearest", "default": "nearest"},
}
IOTA = {"attr": "axes", "input": 0, "when_input_present": 2}
SIGMOID_TANH = ["sigmoid", "tanh", "tanh"]

CASES = [
    ("attr_equals", {"attr": "group", "value": 1, "default": 1}, conv(), True),
    ("attr_equals", {"attr": "group", "value": 1}, conv(), True),  # the standard's default
    ("attr_equals", {"attr": "group", "value": 1, "default": 1}, conv("group = 2"), False),
    ("attr_equals", {"attr": "no_such", "value": 1}, conv(), False),
    ("attr_in", MODE, resize(), True),
    ("attr_in", MODE, resize('mode = "cubic"'), False),
    ("attr_in", {"attr": "kernel_shape", "values": [1], "absent_ok": True}, conv(), True),
    ("attr_in", {"attr": "no_such", "values": [1]}, conv(), False),
    ("attr_in", WHEN, resize('mode = "linear"'), True),
    ("attr_in", WHEN, resize(), False),
    ("attr_in", WHEN, resize('nearest_mode = "floor"'), True),
    ("attr_each_in", {"attr": "activations", "values": ["Sigmoid", "Tanh"]}, lstm(), True),
    (
        "attr_each_in",
        {"attr": "activations", "values": ["Tanh"]},
        lstm('activations = ["Tanh", "Relu", "Tanh"]'),
        False,
    ),
    (
        "attr_each_in_ci",
        {"attr": "activations", "values": ["TANH"]},
        lstm('activations = ["Tanh", "tanh", "tanh"]'),
        True,
    ),
    (
        "attr_each_in_ci",
        {"attr": "activations", "values": ["tanh"]},
        lstm('activations = ["Relu", "Tanh", "Tanh"]'),
        False,
    ),
    ("attr_in_list_ci", {"attr": "activations", "values": SIGMOID_TANH}, lstm(), True),
    (
        "attr_in_list_ci",
        {"attr": "activations", "values": SIGMOID_TANH},
        lstm('activations = ["SIGMOID", "Tanh", "Tanh"]'),
        True,
    ),
    (
        "attr_in_list_ci",
        {"attr": "activations", "values": SIGMOID_TANH},
        lstm('activations = ["Tanh", "Sigmoid", "Tanh"]'),
        False,
    ),
    ("attr_all_equal", {"attr": "dilations", "value": 1}, conv("dilations = [1, 1]"), True),
    ("attr_all_equal", {"attr": "dilations", "value": 1}, conv(), True),
    ("attr_all_equal", {"attr": "dilations", "value": 1}, conv("dilations = [1, 2]"), False),
    ("attr_uniform", {"attr": "pads"}, conv("pads = [1, 1, 1, 1]"), True),
    ("attr_uniform", {"attr": "pads"}, conv("pads = [1, 1, 2, 2]"), False),
    ("attr_absent", {"attrs": ["dilations", "strides"]}, conv(), True),
    ("attr_absent", {"attrs": ["dilations", "strides"]}, conv("strides = [2, 2]"), False),
    ("attr_range", {"attr": "group", "min": 1, "max": 2}, conv("group = 2"), True),
    ("attr_range", {"attr": "group", "max": 1}, conv("group = 2"), False),
    ("attr_range", {"attr": "group", "min": 3}, conv("group = 2"), False),
    ("attr_range", {"attr": "group", "exclusive_min": 1}, conv(), False),
    ("attr_range", {"attr": "group", "exclusive_max": 2}, conv("group = 2"), False),
    ("attr_odd", {"attr": "group"}, conv(), True),
    ("attr_odd", {"attr": "group"}, conv("group = 2"), False),
    ("attr_len_in", {"attr": "kernel_shape", "lengths": [2]}, conv("kernel_shape = [3, 3]"), True),
    ("attr_len_in", {"attr": "kernel_shape", "lengths": [2]}, conv(), True),  # two, by the weights
    ("attr_len_in", {"attr": "kernel_shape", "lengths": [1]}, conv(), False),
    ("attr_len_in", {"attr": "pads", "lengths": [2]}, conv("pads = [1, 1, 1, 1]"), False),
    ("attr_len_in", {"attr": "pads", "lengths": [2]}, conv(), None),
    ("attr_symmetric_pads", {"attr": "pads"}, conv("pads = [1, 2, 1, 2]"), True),
    ("attr_symmetric_pads", {"attr": "pads"}, conv("pads = [1, 2, 2, 1]"), False),
    ("attr_symmetric_pads", {"attr": "pads"}, conv('auto_pad = "SAME_UPPER"'), None),
    ("attr_iota", IOTA, resize(), True),
    ("attr_iota", IOTA, resize("axes = [0, 1, 2, 3]"), True),
    ("attr_iota", IOTA, resize("axes = [-4, -3, -2, -1]"), True),
    ("attr_iota", IOTA, resize("axes = [2, 3]"), False),
    ("attr_not_matches", {"attr": "equation", "pattern": r"\.\.\."}, einsum("ij,jk->ik"), True),
    ("attr_not_matches", {"attr": "equation", "pattern": r"\.\.\."}, einsum("...ij,...jk->...ik"), False),
    ("bidirectional_activations_equal", {"attr": "activations"}, lstm('activations = ["Tanh", "Relu", "Tanh"]'), True),
    (
        "bidirectional_activations_equal",
        {"attr": "activations"},
        lstm('direction = "bidirectional", activations = ["Tanh", "Tanh", "Tanh", "Tanh", "Tanh", "Relu"]', 2),
        False,
    ),
    (
        "bidirectional_activations_equal",
        {"attr": "activations"},
        lstm('direction = "bidirectional", activations = ["Tanh", "Relu", "Tanh", "Tanh", "Relu", "Tanh"]', 2),
        True,
    ),
]


@pytest.mark.parametrize(("check", "arguments", "graph", "expected"), CASES)
def test_check(last_of, condition, check, arguments, graph, expected):
    found = outcome(condition(check, **arguments), last_of(graph), 20)
    assert found.holds is expected
    assert bool(found.fact) == bool(found.remedy) == (expected is not True)


def test_each_check_has_a_node_where_it_holds_and_one_where_it_does_not():
    for check in ATTRIBUTE_CHECKS:
        assert {expected for name, _, _, expected in CASES if name == check} >= {True, False}, check


@pytest.mark.parametrize("check", sorted(set(ATTRIBUTE_CHECKS) - {"attr_absent"}))
def test_an_attribute_of_the_function_around_the_node_cannot_be_told(last_of, condition, check):
    arguments, graph = next((arguments, graph) for each, arguments, graph, _ in CASES if each == check)
    node = last_of(graph)
    referring = {**node.attributes, arguments["attr"]: None}
    if check == "bidirectional_activations_equal":
        referring["direction"] = "bidirectional"
    assert holds(condition(check, **arguments), dataclasses.replace(node, attributes=referring), 20) is None


def test_axes_without_a_known_rank_cannot_be_told_unless_they_are_out_of_order(last_of, condition):
    node = last_of(resize("axes = [0, 1, 2, 3]"))
    unranked = dataclasses.replace(node, inputs=(dataclasses.replace(node.inputs[0], shape=None), *node.inputs[1:]))
    assert holds(condition("attr_iota", **IOTA), unranked, 20) is None
    odd = dataclasses.replace(unranked, attributes={"axes": [3, 2]})
    assert holds(condition("attr_iota", **IOTA), odd, 20) is False
    assert holds(condition("attr_iota", **IOTA), dataclasses.replace(odd, inputs=odd.inputs[:2]), 20) is True


def test_a_when_that_cannot_be_told_leaves_a_broken_condition_open(last_of, condition):
    node = last_of(resize('nearest_mode = "ceil"'))
    open_mode = dataclasses.replace(node, attributes={**node.attributes, "mode": None})
    assert holds(condition("attr_in", **WHEN), open_mode, 20) is None


@given(
    value=strategies.integers(-5, 5),
    bounds=strategies.fixed_dictionaries(
        {}, optional={key: strategies.integers(-5, 5) for key in ("min", "max", "exclusive_min", "exclusive_max")}
    ),
)
def test_ranges_are_those_of_arithmetic(last_of, condition, value, bounds):
    node = dataclasses.replace(last_of(conv()), attributes={"group": value})
    kept = (
        value >= bounds.get("min", -9)
        and value <= bounds.get("max", 9)
        and value > bounds.get("exclusive_min", -9)
        and value < bounds.get("exclusive_max", 9)
    )
    assert holds(condition("attr_range", attr="group", **bounds), node, 20) is kept


@given(strategies.lists(strategies.integers(0, 2), min_size=2, max_size=6).filter(lambda pads: len(pads) % 2 == 0))
def test_pads_are_symmetric_when_both_halves_are_the_same(last_of, condition, pads):
    node = dataclasses.replace(last_of(conv()), attributes={"pads": pads})
    expected = pads[: len(pads) // 2] == pads[len(pads) // 2 :]
    assert holds(condition("attr_symmetric_pads", attr="pads"), node, 20) is expected


def test_the_fact_names_what_the_node_has(last_of, condition):
    found = outcome(condition("attr_in", **MODE), last_of(resize('mode = "cubic"')), 20)
    assert found.fact == "attribute 'mode' is cubic, only nearest or linear is taken"
    assert "--fix" in found.remedy
