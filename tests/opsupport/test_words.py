"""Conditions in words only: told where they have nothing to do with the node, and otherwise as they are."""

import pytest

from deploykit.opsupport.conditions import outcome
from deploykit.opsupport.outcome import listed, ranges

NARROWED = "narrowed to {}, values clamped"
FLOAT32_AS_16 = "HTP wants 8/16-bit quantised or float16; float32 is run as float16 by default"
RELU = "({0} x) => ({0} y) {{ y = Relu (x) }}"
INT64 = "(float[2,3] x) => (y) <int64[2] s = {{{0}}}> {{ y = Reshape (x, s) }}"
QUANTIZE = "(float[2] x) => (q) <float s = {0.5}> { q = QuantizeLinear (x, s) }"
IF = """(bool c, float[2] x) => (float[2] y)
    { y = If (c) <then_branch = yes () => (float[2] a) { a = Neg (x) },
                  else_branch = no () => (float[2] b) { b = Abs (x) }> }"""

CASES = [
    ("float64", NARROWED.format("float32"), RELU.format("float[2]"), True),
    ("float64", NARROWED.format("float32"), RELU.format("double[2]"), None),
    ("int64", NARROWED.format("int32"), INT64.format("3, 2"), True),
    ("int64", NARROWED.format("int32"), INT64.format("3, 99999999999"), None),
    ("int64", NARROWED.format("int32"), "(float[2,3] x, int64[2] s) => (y) { y = Reshape (x, s) }", None),
    ("uint8", "allowed on network inputs/outputs and as Cast operand only", RELU.format("float[2]"), True),
    (
        "uint8",
        "allowed on network inputs/outputs and as Cast operand only",
        "(uint8[2] x) => (y) { y = Cast <to = 1> (x) }",
        True,
    ),
    ("uint8", "allowed on network inputs/outputs and as Cast operand only", QUANTIZE, False),
    ("int8,int4,float8,float4", "only through QuantizeLinear/DequantizeLinear", QUANTIZE, True),
    ("int8,int4,float8,float4", "only through QuantizeLinear/DequantizeLinear", RELU.format("int8[2]"), False),
    ("any input", "no zero-element tensors", RELU.format("float[2]"), True),
    ("any input", "no zero-element tensors", RELU.format("float[0,2]"), False),
    ("any input", "static shapes in practice", RELU.format("float[2]"), True),
    ("any input", "static shapes in practice", RELU.format("float[n]"), None),
    ("first input", "float32 unless quantised or noted", RELU.format("float[2]"), True),
    ("first input", "float32 unless quantised or noted", RELU.format("float16[2]"), None),
    ("tensors", FLOAT32_AS_16, RELU.format("float16[2]"), True),
    ("tensors", FLOAT32_AS_16, RELU.format("float[2]"), None),
    ("control flow", "If, Loop, Scan not taken", RELU.format("float[2]"), True),
    ("control flow", "If, Loop, Scan not taken", IF, False),
    ("anything", "words that nobody has read", RELU.format("float[2]"), None),
]


@pytest.mark.parametrize(("subject", "rule", "graph", "expected"), CASES)
def test_words(nodes_of, condition, subject, rule, graph, expected):
    node = nodes_of(graph)[0]
    found = outcome(condition("none", subject, rule), node, 20)
    assert found.holds is expected
    if expected is None:
        assert rule in found.fact


def test_a_check_that_is_not_known_is_words(last_of, condition):
    found = outcome(condition("attr_of_next_year", "mode", "is good"), last_of(RELU.format("float[2]")), 20)
    assert (found.holds, found.fact) == (None, "mode: is good")


@pytest.mark.parametrize(
    ("opset", "expected", "fact"),
    [(7, True, ""), (13, True, ""), (30, True, ""), (12, False, "the model's opset is 12, 7-9, 13 and later is taken")],
)
def test_opset_ranges(last_of, condition, opset, expected, fact):
    found = outcome(condition("opset_in", ranges=[[7, 9], [13, None]]), last_of(RELU.format("float[2]")), opset)
    assert (found.holds, found.fact) == (expected, fact)


def test_version_of_the_operator(last_of, condition):
    node = last_of(RELU.format("float[2]"))
    assert outcome(condition("since_version_max", max=14), node, 20).holds is True
    assert outcome(condition("since_version_max", max=13), node, 20).holds is False
    custom = last_of("(float[2] x) => (y) { y = my.Op (x) }", imports=', "my": 1')
    assert outcome(condition("since_version_max", max=13), custom, 20).holds is None


def test_lists_and_ranges_in_sentences():
    assert listed(["a"]) == "a"
    assert listed([1, 2, 3]) == "1, 2 or 3"
    assert ranges([[11, 12], [2, 10], [14, None]]) == "2-12, 14 and later"
    assert ranges([[5, 5]]) == "5"
