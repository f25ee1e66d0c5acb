"""Words of the operator tables that are read: where they hold, where they do not, and where the graph does not say."""

import pytest

from deploykit.opsupport.conditions import outcome
from deploykit.opsupport.readings import READINGS
from deploykit.opsupport.tables import load_table
from deploykit.target import get_target, target_names


def words(op, *begins):
    """The one reading of the operator whose rule begins like that."""
    (found,) = [key for key in READINGS if key[0] == op and key[1:] and all(b in f"{key[1]}: {key[2]}" for b in begins)]
    return found


CONV = "(float[1,{c},8,8] x, {t}[4,{k},3,3] w) => (y) {{ y = Conv <group = {g} {more}> (x, w) }}"
CONV_5 = "(float[1,4,8,8,8] x, float[4,{k},3,3,3] w) => (y) {{ y = Conv <group = {g} {more}> (x, w) }}"
SLICE = """(float[4,4] x {inputs}) => (y)
    <int64[1] s = {{0}}, int64[1] e = {{2}}, int64[1] a = {{0}}, int64[1] p = {{{step}}}>
    {{ y = Slice (x, s, {end}, a, p) }}"""
CLIP = "(float[2] x, float l) => (y) <float a = {{{low}}}, float b = {{{high}}}> {{ y = Clip (x, {first}, b) }}"
GEMM = "(float[3,4] x, float[4,5] w, float[{c}] c) => (y) {{ y = Gemm <transB = {t}> (x, w, c) }}"
RESHAPE = "(float[{x}] x) => (y) <int64[{n}] s = {{{s}}}> {{ y = Reshape {a} (x, s) }}"
SPLIT = "(float[{d}] x) => ({outputs}) {{ {outputs} = Split <num_outputs = {n}> (x) }}"
MATMUL = "({t}[{a}] a, {t}[{b}] b) => (y) {{ y = MatMul (a, b) }}"
IF = """(bool c, float[2] x) => (y)
    {{ y = If (c) <then_branch = yes () => (float[2] {a}) {{ {a} = Neg (x) }},
                   else_branch = no () => (float[{d}] {b}) {{ {b} = {op} }}> }}"""
LSTM = """(float[3,1,2] x, float[1,8,2] w, float[1,8,2] r, int32[1] l) => (y)
    {{ y = LSTM <hidden_size = 2> (x, w, r {more}) }}"""
QUANTIZED = """(float[2,2] x) => (y) <int8[2,2] q = {1,2,3,4}, float s = {0.5}>
    { w = DequantizeLinear (q, s) y = MatMul (x, w) }"""


def conv(g=1, k=4, c=4, more="", t="float"):
    return CONV.format(g=g, k=k, c=c, more=more and f", {more}", t=t)


def conv_5(g=1, k=4, more=""):
    return CONV_5.format(g=g, k=k, more=more and f", {more}")


def slice_(end="e", step=1):
    return SLICE.format(end=end, step=step, inputs=", int64[1] d")


def clip(low=0, high=6, first="a"):
    return CLIP.format(low=low, high=high, first=first)


def gemm(c="5", t=0):
    return GEMM.format(c=c, t=t)


def reshape(s, x="2,6", a=""):
    return RESHAPE.format(s=s, n=s.count(",") + 1, x=x, a=a)


def if_(a="a", b="b", d="2", op="Abs (x)"):
    return IF.format(a=a, b=b, d=d, op=op)


GROUP = words("Conv", "regular or depthwise")
CASES = [
    (GROUP, conv(), True),
    (GROUP, conv(g=4, k=1), True),
    (GROUP, conv(g=2, k=2), "group"),
    (GROUP, conv_5(g=4, k=1), "rank 5"),
    (GROUP, "(float[1,4,8,8] x, float w) => (y) { u = my.Op (w) y = Conv <group = 2> (x, u) }", None),
    (words("Conv", "SAME_LOWER"), conv(more='auto_pad = "SAME_LOWER"'), True),
    (words("Conv", "SAME_LOWER"), conv_5(more='auto_pad = "SAME_LOWER"'), "SAME_LOWER"),
    (words("Conv", "dilations"), conv(), True),
    (words("Conv", "dilations"), conv(more="dilations = [2, 2]"), None),
    (words("Conv", "dilations"), conv(g=4, k=1, more="dilations = [2, 2]"), "of groups"),
    (words("Slice", "ends: constant"), slice_(), True),
    (words("Slice", "ends: constant"), slice_(end="d"), None),
    (words("Slice", "steps"), slice_(), True),
    (words("Slice", "steps"), slice_(step=-1), None),
    (words("Slice", "known length"), slice_(end="d"), True),
    (words("Slice", "known length"), slice_(end="u").replace("{ y", "{ u = my.Op (x) y"), None),
    (words("Expand", ""), "(float[1] x) => (y) <int64[1] s = {3}> { y = Expand (x, s) }", True),
    (words("Expand", ""), "(float[1] x, int64[1] s) => (y) { y = Expand (x, s) }", None),
    (words("Cast", ""), "(float[2] x) => (y) { y = Cast <to = 7> (x) }", "input of the graph"),
    (words("Cast", ""), "(float[2] x) => (y) { h = Relu (x) y = Cast <to = 7> (h) }", True),
    (words("Clip", "min != max"), clip(), True),
    (words("Clip", "min != max"), clip(low=6), "both bounds are 6"),
    (words("Clip", "min != max"), clip(first="l"), None),
    (words("Clip", "min != max"), "(float[2] x) => (y) { y = Clip (x) }", True),
    (words("Clip", "exactly"), clip(), True),
    (words("Clip", "exactly"), clip(low=-1, high=1), True),
    (words("Clip", "exactly"), clip(high=7), "clips to [0.0, 7.0]"),
    (words("Clip", "exactly"), clip(first="l"), None),
    (words("Gemm", "scalar"), gemm("5"), True),
    (words("Gemm", "scalar"), gemm("1,5"), True),
    (words("Gemm", "scalar"), gemm("3,5"), "[3, 5]"),
    (words("Gemm", "scalar"), gemm("n,5"), None),
    (words("Gemm", "vector"), gemm("5"), True),
    (words("Gemm", "vector"), gemm("1,5"), "rank 2"),
    (words("Gemm", "vector"), gemm("1"), None),
    (words("Gemm", "transB"), gemm(), "not a constant"),
    (words("Gemm", "transB"), gemm(t=1).replace("float[4,5]", "float[5,4]"), True),
    (words("MatMul", "no mix"), MATMUL.format(t="float", a="2,3", b="3,4"), True),
    (words("MatMul", "no mix"), MATMUL.format(t="float", a="2,3", b="3"), "ranks 2 and 1"),
    (words("MatMul", "both rank 2"), MATMUL.format(t="float", a="2,3", b="3,4"), True),
    (words("MatMul", "both rank 2"), MATMUL.format(t="float", a="5,2,3", b="3,4"), "ranks 3 and 2"),
    (words("MatMul", "quantised"), MATMUL.format(t="float", a="2,3", b="3,4"), True),
    (words("MatMul", "quantised"), QUANTIZED, None),
    (words("Reshape", "at most 5"), reshape("3, 4"), True),
    (words("Reshape", "at most 5"), reshape("0, 6"), True),
    (words("Reshape", "at most 5"), reshape("1, 1, 1, 1, 2, 6"), "6 entries"),
    (words("Reshape", "at most 5"), reshape("0, 6", a="<allowzero = 1>"), "'allowzero' is 1"),
    (words("Reshape", "dynamic dim"), reshape("0, 6"), True),
    (words("Reshape", "dynamic dim"), reshape("0, 6", x="n,6"), None),
    (words("Reshape", "dynamic dim"), reshape("-1, 3", x="n,6"), True),
    (words("Reshape", "dynamic dim"), "(float[2] x, int64[1] s) => (y) { y = Reshape (x, s) }", None),
    (words("Split", "at least 2"), SPLIT.format(d=4, n=2, outputs="a, b"), True),
    (words("Split", "at least 2"), SPLIT.format(d=4, n=1, outputs="a"), "one output"),
    (words("Split", "at least 2"), SPLIT.format(d="n", n=2, outputs="a, b"), None),
    (words("Split", "equal parts"), SPLIT.format(d=4, n=2, outputs="a, b"), True),
    (words("Split", "equal parts"), SPLIT.format(d=5, n=2, outputs="a, b"), "[3, 2]"),
    (words("Split", "equal parts"), "(float[5] x, int64[2] s) => (a, b) { a, b = Split (x, s) }", None),
    (words("Gather", "scalar"), "(float[2,3] x, int64[1] i) => (y) { y = Gather (x, i) }", True),
    (words("Gather", "scalar"), "(float[2,3] x, int64 i) => (y) { y = Gather (x, i) }", "is a scalar"),
    (words("Gather", "scalar"), "(float[2,3,4,5] x, int64[1,1,1] i) => (y) { y = Gather (x, i) }", "rank 6"),
    (words("Gather", "int32"), "(float[2] x, int32[1] i) => (y) { y = Gather (x, i) }", True),
    (words("Gather", "int32"), "(float[2] x, int64[1] i) => (y) { y = Gather (x, i) }", "not a constant"),
    (words("Gather", "no negative"), "(float[2] x) => (y) <int64[1] i = {1}> { y = Gather (x, i) }", True),
    (words("Gather", "no negative"), "(float[2] x) => (y) <int64[1] i = {-1}> { y = Gather (x, i) }", "negative"),
    (words("Gather", "no negative"), "(float[2] x, int64[1] i) => (y) { y = Gather (x, i) }", None),
    (words("Unsqueeze", "rank <= 5"), "(float[2] x) => (y) <int64[1] a = {0}> { y = Unsqueeze (x, a) }", True),
    (
        words("Unsqueeze", "rank <= 5"),
        "(float[1,1,1,1,2] x) => (y) <int64[1] a = {0}> { y = Unsqueeze (x, a) }",
        "rank 6",
    ),
    (words("Unsqueeze", "dynamic"), "(float[2] x) => (y) <int64[1] a = {0}> { y = Unsqueeze (x, a) }", True),
    (words("Unsqueeze", "dynamic"), "(float[2] x, int64[1] a) => (y) { y = Unsqueeze (x, a) }", None),
    (words("Softmax", ""), "(float[n,3] x) => (y) { y = Softmax (x) }", True),
    (words("Pad", ""), "(float[2] x) => (y) <int64[2] p = {1, 0}> { y = Pad (x, p) }", True),
    (words("Pad", ""), "(float[3] x) => (y) <int64[2] p = {-1, 0}> { y = Pad (x, p) }", "negative"),
    (words("Pad", ""), "(float[3] x, int64[2] p) => (y) { y = Pad (x, p) }", None),
    (words("DepthToSpace", "CRD"), "(float[n,4,2,2] x) => (y) { y = DepthToSpace <blocksize = 2> (x) }", True),
    (
        words("DepthToSpace", "CRD"),
        '(float[n,4,2,2] x) => (y) { y = DepthToSpace <blocksize = 2, mode = "CRD"> (x) }',
        None,
    ),
    (words("If", "same rank"), if_(), True),
    (words("If", "same rank"), if_(d="1,2", op="Unsqueeze (x, x)"), "ranks 1 and 2"),
    (words("If", "names"), if_(), True),
    (words("If", "names"), if_(b="a"), "both branches have an output 'a'"),
    (words("LSTM", "dim 0"), LSTM.format(more=""), True),
    (words("LSTM", "dim 0"), LSTM.format(more=", , l"), None),
    (words("Div", ""), "(float[2] a, float[2] b) => (y) { y = Div (a, b) }", True),
    (words("Div", ""), "(int64[2] a, int64[2] b) => (y) { y = Div (a, b) }", None),
    (words("Div", ""), "(int64[2] a) => (y) <int64[2] b = {0, 1}> { y = Div (a, b) }", "has a 0"),
    (words("Tile", ""), "(float[2] a, int64[1] b) => (y) { y = Tile (a, b) }", True),
    (words("ReduceL2", ""), "(float[2] a) => (y) { y = ReduceL2 (a) }", True),
    (words("GridSample", ""), "(float[1,1,2,2] x, float[1,2,2,2] g) => (y) { y = GridSample (x, g) }", True),
    (
        words("GridSample", ""),
        '(float[1,1,2,2] x, float[1,2,2,2] g) => (y) { y = GridSample <padding_mode = "reflection"> (x, g) }',
        "'align_corners' is 0",
    ),
    (
        words("ConvTranspose", "output_padding:"),
        "(float[1,1,2,2] x, float[1,1,2,2] w) => (y) { y = ConvTranspose (x, w) }",
        True,
    ),
    (
        words("ConvTranspose", "output_padding:"),
        "(float[1,1,2,2] x, float[1,1,2,2] w) => (y) { y = ConvTranspose <output_padding = [1, 0]> (x, w) }",
        "the strides are [1, 1]",
    ),
    (
        words("ConvTranspose", "kernel_shape"),
        "(float[1,1,2,2] x, float[1,1,2,2] w) => (y) { y = ConvTranspose (x, w) }",
        True,
    ),
    (
        words("ConvTranspose", "kernel_shape"),
        "(float[1,1,2,2] x, float[1,1,2,2] w) => (y) { y = ConvTranspose <kernel_shape = [3, 3]> (x, w) }",
        "the weights are [2, 2]",
    ),
]


@pytest.mark.parametrize(("key", "graph", "expected"), CASES, ids=range(len(CASES)))
def test_reading(nodes_of, condition, key, graph, expected):
    operator, subject, rule = key
    node = next(node for node in nodes_of(graph, imports=', "my": 1') if node.op == operator)
    found = outcome(condition("none", subject, rule), node, node.opset)
    if isinstance(expected, str):
        assert found.holds is False
        assert expected in found.fact
    else:
        assert found.holds is expected
    assert bool(found.remedy) == (found.holds is not True)


def test_every_reading_is_of_words_that_a_table_has():
    tables = [load_table(name) for target in map(get_target, target_names()) for name in target.tables.values()]
    written = {
        (key.rpartition(":")[2], condition["subject"], condition["rule"])
        for table in tables
        for key, row in table.facts["ops"].items()
        for condition in row["conditions"]
        if condition["machine"]["check"] == "none"
    }
    assert set(READINGS) <= written


def test_softmax_before_opset_13_takes_the_shape(nodes_of, condition):
    key = words("Softmax", "")
    for shape, expected in (("n,3", None), ("2,3", True)):
        (node,) = nodes_of(f"(float[{shape}] x) => (y) {{ y = Softmax (x) }}", 12)
        assert outcome(condition("none", *key[1:]), node, 12).holds is expected
