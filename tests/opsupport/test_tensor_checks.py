"""Each check of tensors: a node where it holds, one where it does not, one where it cannot be told."""

import dataclasses

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, strategies

from deploykit.opsupport.conditions import holds, outcome
from deploykit.opsupport.facts import NodeFacts, TensorFacts
from deploykit.opsupport.tensor_checks import TENSOR_CHECKS, table_dtype

RELU = "(float[{0}] x) => (float[{0}] y) {{ y = Relu (x) }}"
UNKNOWN = """(float[2,3] x, bool c) => (y)
    { z = NonZero (x) u = Reshape (x, z) y = Relu (u) }"""
ADD = "({0} a, {1} b) => (c) {{ c = Add (a, b) }}"
CLIP = "(float[2] x, float a) => (float[2] y) <float low = {0}, float high = {6}> { y = Clip (x, low, high) }"
CLIP_COMPUTED = "(float[2] x, float a) => (float[2] y) { y = Clip (x, a) }"
CLIP_FOLDABLE = "(float[2] x, float a) => (float[2] y) <float low = {1}> { n = Neg (low) y = Clip (x, n) }"
CLIP_BARE = "(float[2] x, float a) => (float[2] y) { y = Clip (x) }"
CONV_DEQUANTIZED = """(float[1,1,4,4] x) => (y) <int8[1,1,1,1] q = {3}, float s = {0.5}>
    { w = DequantizeLinear (q, s) y = Conv (x, w) }"""
RESHAPE = "(float[2,3] x) => (y) <int64[2] shape = {{{0}}}> {{ y = Reshape (x, shape) }}"
RESHAPE_COMPUTED = "(float[2,3] x, int64[2] shape) => (y) { y = Reshape (x, shape) }"
OF_A_SHAPE = "(float[2,3] x) => (y) { shape = Shape (x) y = Reshape (x, shape) }"
TOPK = "(float[1,9] x) => (v, i) <int64[1] k = {{{0}}}> {{ v, i = TopK (x, k) }}"
TOPK_COMPUTED = "(float[1,9] x, int64[1] k) => (v, i) { v, i = TopK (x, k) }"
QUANTIZE = "(float[2] x) => (q) <float s = {{0.5}}, {0} z = {{{1}}}> {{ q = QuantizeLinear (x, s, z) }}"
QUANTIZE_COMPUTED = "(float[2] x, int8 z) => (q) <float s = {0.5}> { q = QuantizeLinear (x, s, z) }"
QUANTIZE_BARE = "(float[2] x) => (q) <float s = {0.5}> { q = QuantizeLinear (x, s) }"
DROPOUT = "(float[2] x) => (y) <float r = {{0.5}}, bool t = {{{0}}}> {{ y = Dropout (x, r, t) }}"
DROPOUT_COMPUTED = "(float[2] x, bool t) => (y) <float r = {0.5}> { y = Dropout (x, r, t) }"
MASK_USED = "(float[2] x) => (y, m) { y, m = Dropout (x) }"
MASK_UNUSED = "(float[2] x) => (y) { y, m = Dropout (x) }"
SOFTMAX = "(float[{0}] x) => (y) {{ y = Softmax <axis = 1> (x) }}"
CAST = "(float[2] x) => (y) { y = Cast <to = 7> (x) }"
OPEN = "(float[?,3] x) => (y) { y = Relu (x) }"
AXIS_1 = {"input": 0, "axis_attr": "axis", "axis_default": -1}
TWO = "float[2]"

CASES = [
    ("rank_in", {"input": 0, "ranks": [2, 4]}, RELU.format("2,3"), True),
    ("rank_in", {"input": 0, "ranks": [2, 4]}, RELU.format("2,3,4"), False),
    ("rank_in", {"input": 0, "ranks": [2, 4]}, UNKNOWN, None),
    ("rank_in", {"input": 2, "ranks": [2], "if_present": True}, RELU.format("2"), True),
    ("rank_min", {"input": 0, "min": 2}, RELU.format("2,3"), True),
    ("rank_min", {"input": 0, "min": 3}, RELU.format("2,3"), False),
    ("rank_min", {"input": 0, "min": 3}, UNKNOWN, None),
    ("rank_max", {"input": "*", "max": 2}, RELU.format("2,3"), True),
    ("rank_max", {"input": "*", "max": 1}, ADD.format(TWO, "float[1,2]"), False),
    ("rank_max", {"input": "*", "max": 5}, UNKNOWN, None),
    ("static_rank", {"input": 0}, RELU.format("n"), True),
    ("static_rank", {"input": 0}, UNKNOWN, None),
    ("static_shape", {"input": 0}, RELU.format("2,3"), True),
    ("static_shape", {"input": 0}, RELU.format("n,3"), False),
    ("static_shape", {"input": "*"}, UNKNOWN, None),
    ("static_shape", {"input": 0}, OPEN, None),
    ("static_dim", AXIS_1, SOFTMAX.format("n,3"), True),
    ("static_dim", AXIS_1, SOFTMAX.format("3,n"), False),
    ("static_dim", {"input": 0, "axis": -1}, RELU.format("n,3"), True),
    ("static_dim", {"input": 0, "axis": 0}, OPEN, None),
    ("static_dim", {"input": 0, "axis": 0}, UNKNOWN, None),
    ("dim_max", {"input": 0, "axis": "*", "max": 3}, RELU.format("n,3"), True),
    ("dim_max", {"input": 0, "axis": "*", "max": 2}, RELU.format("n,3"), False),
    ("dim_max", {"input": 0, "axis": 0, "max": 2}, RELU.format("n,3"), None),
    ("dim_max", {"input": 0, "axis": 1, "max": 3}, RELU.format("n,3"), True),
    ("dim_max", {"input": 0, "axis": 0, "max": 2}, UNKNOWN, None),
    ("dim_max", {"input": 1, "of": "value", "max": 4}, TOPK.format(4), True),
    ("dim_max", {"input": 1, "of": "value", "max": 4}, TOPK.format(5), False),
    ("dim_max", {"input": 1, "of": "value", "max": 4}, TOPK_COMPUTED, None),
    ("dim_equals", {"input": 0, "axis": 0, "value": 2}, RELU.format("2,3"), True),
    ("dim_equals", {"input": 0, "axis": -1, "value": 2}, RELU.format("2,3"), False),
    ("dim_equals", {"input": 0, "axis": 0, "value": 1}, RELU.format("n,3"), None),
    ("dim_equals", {"input": 0, "axis": 0, "value": 1}, OPEN, None),
    ("dtype_in", {"input": 0, "dtypes": ["float32", "int64"]}, RELU.format("2"), True),
    ("dtype_in", {"input": 0, "dtypes": ["float16"]}, RELU.format("2"), False),
    ("dtype_in", {"output": 0, "dtypes": ["int64"]}, CAST, True),
    ("dtype_in", {"output": 0, "dtypes": ["float32"]}, CAST, False),
    ("dtype_in", {"input": 3, "dtypes": ["int64"], "if_present": True}, CAST, True),
    ("dtype_same", {"inputs": [0, 1]}, ADD.format(TWO, TWO), True),
    ("dtype_same", {"inputs": [0, 1]}, ADD.format(TWO, "int64[2]"), False),
    ("input_is_initializer", {"input": 1}, CLIP, True),
    ("input_is_initializer", {"input": 1}, CLIP_COMPUTED, False),
    ("input_is_initializer", {"input": 1}, CLIP_FOLDABLE, False),
    ("input_is_initializer", {"input": 1, "constant_expr_ok": True}, CLIP_FOLDABLE, True),
    ("input_is_initializer", {"input": 1, "constant_expr_ok": True}, OF_A_SHAPE, True),
    ("input_is_initializer", {"input": 1, "if_present": True}, CLIP_BARE, True),
    ("input_is_initializer", {"input": 1}, CONV_DEQUANTIZED, None),
    ("input_absent", {"inputs": [1, 2]}, CLIP_BARE, True),
    ("input_absent", {"inputs": [1, 2]}, CLIP, False),
    ("input_count_in", {"counts": [1, 3]}, CLIP, True),
    ("input_count_in", {"counts": [2]}, CLIP, False),
    ("input_count_min", {"min": 2}, ADD.format(TWO, TWO), True),
    ("input_count_min", {"min": 2}, CLIP_BARE, False),
    ("input_count_max", {"max": 1}, CLIP_BARE, True),
    ("input_count_max", {"max": 1}, CLIP, False),
    ("output_absent", {"outputs": [1, 2]}, MASK_UNUSED, True),
    ("output_absent", {"outputs": [1, 2]}, MASK_USED, False),
    ("output_absent", {"outputs": [1, 2]}, CLIP, True),
    ("zero_point_zero", {"input": 2}, QUANTIZE.format("int8", 0), True),
    ("zero_point_zero", {"input": 2}, QUANTIZE_BARE, True),
    ("zero_point_zero", {"input": 2}, QUANTIZE.format("uint8", 128), False),
    ("zero_point_zero", {"input": 2}, QUANTIZE_COMPUTED, None),
    ("value_in", {"input": 2, "values": [False], "if_present": True}, DROPOUT.format(0), True),
    ("value_in", {"input": 2, "values": [False], "if_present": True}, DROPOUT.format(1), False),
    ("value_in", {"input": 2, "values": [False], "if_present": True}, DROPOUT_COMPUTED, None),
    ("value_in", {"input": 2, "values": [False], "if_present": True}, MASK_USED, True),
    ("value_none_equal", {"input": 1, "value": 0}, RESHAPE.format("3, 2"), True),
    ("value_none_equal", {"input": 1, "value": 0}, RESHAPE.format("0, 3"), False),
    ("value_none_equal", {"input": 1, "value": 0}, RESHAPE_COMPUTED, None),
]


@pytest.mark.parametrize(("check", "arguments", "graph", "expected"), CASES)
def test_check(last_of, condition, check, arguments, graph, expected):
    found = outcome(condition(check, **arguments), last_of(graph), 20)
    assert found.holds is expected
    assert bool(found.fact) == bool(found.remedy) == (expected is not True)


def test_each_check_has_a_node_where_it_holds_and_one_where_it_does_not():
    for check in TENSOR_CHECKS:
        expected = {outcome for name, _, _, outcome in CASES if name == check}
        # An unknown rank may be a static one for all that is known.
        assert expected >= ({True, None} if check == "static_rank" else {True, False}), check


@pytest.mark.parametrize(
    ("check", "arguments"), [("dtype_in", {"input": 0, "dtypes": ["int64"]}), ("dtype_same", {"inputs": [0, 1]})]
)
def test_an_unknown_type_cannot_be_told(last_of, condition, check, arguments):
    node = last_of("(float[2] x) => (c) { u, v = my.Op (x) c = Add (u, v) }", imports=', "my": 1')
    assert holds(condition(check, **arguments), node, 20) is None


@pytest.mark.parametrize(
    ("check", "arguments", "graph", "said"),
    [
        ("rank_max", {"input": 0, "max": 1}, RELU.format("2,3"), "input 0 'x' has rank 2, at most 1 is taken"),
        ("input_is_initializer", {"input": 1}, CLIP_COMPUTED, "input 1 'a' is not a constant"),
        ("zero_point_zero", {"input": 2}, QUANTIZE.format("uint8", 128), "input 2 'z' is not zero"),
        ("input_count_in", {"counts": [2, 4]}, CLIP, "the node has 3 inputs, 2 or 4 are taken"),
        ("static_shape", {"input": 0}, RELU.format("n,3"), "(axis 0 is 'n')"),
    ],
)
def test_the_fact_names_what_the_node_has(last_of, condition, check, arguments, graph, said):
    assert said in outcome(condition(check, **arguments), last_of(graph), 20).fact


def test_dynamic_dimensions_are_fixed_with_a_command(last_of, condition):
    found = outcome(condition("static_shape", input=0), last_of(RELU.format("batch,3,n")), 20)
    assert "deploykit simplify MODEL -o OUT --dim batch=1 --dim n=1" in found.remedy


def test_what_follows_from_dimensions_of_the_inputs_is_fixed_by_fixing_those(last_of, condition):
    text = """(float[batch,3] x, float[other] z) => (y) <int64[1] at = {0}, int64[1] three = {3}>
        { s = Shape (x) g = Gather (s, at) shape = Concat <axis = 0> (g, three) y = Reshape (x, shape) }"""
    found = outcome(condition("input_is_initializer", input=1), last_of(text), 20)
    assert "it follows from dynamic dimensions" in found.fact
    assert "--dim batch=1 --dim other=1" in found.remedy
    text = "(float[a,b] x) => (y) { h = Concat <axis = 0> (x, x) y = Relu (h) }"
    assert "--dim a=1 --dim b=1" in outcome(condition("static_shape", input=0), last_of(text), 20).remedy
    node = dataclasses.replace(last_of(RELU.format("n,3")), symbols=())
    assert "--dim NAME=SIZE" in outcome(condition("static_shape", input=0), node, 20).remedy
    node = dataclasses.replace(last_of(OPEN), symbols=("?",))
    assert "--dim '?=1'" in outcome(condition("static_shape", input=0), node, 20).remedy


def test_any_input_leaves_the_outputs_out(last_of, condition):
    node = last_of("(float[2] x) => (y) <int64[2] axes = {0, 1}> { y = Unsqueeze (x, axes) }")
    assert holds(condition("rank_max", "any tensor", input="*", max=2), node, 20) is False
    assert holds(condition("rank_max", "any input", input="*", max=2), node, 20) is True


def node_of(*tensors):
    return NodeFacts("n", "", "Some", 20, None, {}, tensors, ())


@given(
    strategies.lists(
        strategies.one_of(strategies.none(), strategies.integers(0, 9), strategies.sampled_from(["n", "m"])), max_size=4
    )
)
def test_static_shape_by_its_dimensions(condition, shape):
    found = holds(condition("static_shape", input=0), node_of(TensorFacts("x", "float32", tuple(shape))), 20)
    named, unknown = any(isinstance(dim, str) for dim in shape), None in shape
    assert found is (False if named else None if unknown else True)


@given(strategies.lists(strategies.integers(-3, 3), max_size=4), strategies.integers(-3, 3))
def test_values_are_compared_one_by_one(condition, values, bound):
    tensor = dataclasses.replace(
        TensorFacts("x", "int64", (len(values),), constant=True), _tensor=ir.tensor(np.array(values, np.int64))
    )
    node = node_of(tensor)
    assert holds(condition("value_none_equal", input=0, value=bound), node, 20) is (bound not in values)
    assert holds(condition("value_in", input=0, values=[bound]), node, 20) is (set(values) <= {bound})
    assert holds(condition("dim_max", input=0, of="value", max=bound), node, 20) is (max(values, default=-9) <= bound)
    assert holds(condition("zero_point_zero", input=0), node, 20) is (not any(values))


@given(strategies.integers(0, 8), strategies.integers(0, 8))
def test_ranks_are_compared(condition, rank, bound):
    node = node_of(TensorFacts("x", "float32", (1,) * rank))
    assert holds(condition("rank_max", input=0, max=bound), node, 20) is (rank <= bound)
    assert holds(condition("rank_min", input=0, min=bound), node, 20) is (rank >= bound)
    assert holds(condition("rank_in", input=0, ranks=[bound]), node, 20) is (rank == bound)


def test_types_have_the_names_of_the_tables():
    names = {
        ir.DataType.FLOAT8E4M3FN: "float8e4m3fn",
        ir.DataType.FLOAT8E5M2FNUZ: "float8e5m2fnuz",
        ir.DataType.FLOAT4E2M1: "float4e2m1",
        ir.DataType.BFLOAT16: "bfloat16",
        ir.DataType.INT4: "int4",
        ir.DataType.DOUBLE: "float64",
    }
    assert {dtype: table_dtype(np.dtype(dtype.numpy()).name) for dtype in names} == names
    assert table_dtype("sequence(float32)") == "seq"
    assert table_dtype("optional(float32)") == "optional"
    assert table_dtype("unknown") is None
