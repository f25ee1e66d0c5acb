"""Nodes that compute in another type give what they gave, to the bit where nothing is rounded."""

from __future__ import annotations

import numpy as np
import pytest

from deploykit import graph
from deploykit.optimizers.rewrites.type_changes import (
    HalfAsFloat,
    Int32AsInt64,
    IntegersAsFloat,
    NarrowInt64,
    SmallIntegersAsFloat,
    SmallIntegersAsInt32,
)


def same(result):
    for before, after in zip(result.expected, result.found, strict=True):
        for a, b in zip(before, after, strict=True):
            np.testing.assert_array_equal(b, a)


def input_types(result, op):
    nodes = [node for node in graph.all_nodes(result.model) if node.op_type == op]
    return {value.dtype.name for node in nodes for value in node.inputs if value is not None}


def test_ids_from_outside_that_pick_rows_are_narrowed(rewritten):
    """The input keeps int64, its shape and its dynamic dimension."""
    result = rewritten(
        NarrowInt64(),
        """agraph (int64[N,T] ids) => (float[N,T,2] y) <float[3,2] table = {1, 2, 3, 4, 5, 6}>
        { y = Gather(table, ids) }""",
        {"ids": np.array([[0, 2, -1]])},
        {"ids": np.array([[1], [1]])},
    )
    same(result)
    assert result.ops == ["Cast", "Gather"]
    assert input_types(result, "Gather") == {"FLOAT", "INT32"}


def test_shape_arithmetic_is_narrowed_as_a_chain(rewritten):
    """Casts between two narrowed nodes go; those at the ends stay."""
    result = rewritten(
        NarrowInt64(),
        """agraph (float[N,4,6] x) => (float[N,M] y)
        <int64[1] minus = {-1}, int64 zero = {0}, int64[1] axis = {0}>
        { s = Shape(x)
          n = Gather(s, zero)
          u = Unsqueeze(n, axis)
          t = Concat<axis=0>(u, minus)
          y = Reshape(x, t) }""",
        {"x": np.zeros((2, 4, 6), np.float32)},
        {"x": np.zeros((5, 4, 6), np.float32)},
    )
    same(result)
    assert result.ops == ["Shape", "Cast", "Gather", "Unsqueeze", "Concat", "Cast", "Reshape"]
    assert input_types(result, "Concat") == {"INT32"}


def test_ends_beyond_int32_still_mean_to_the_end(rewritten):
    result = rewritten(
        NarrowInt64(),
        """agraph (float[N,4] x) => (float[N,2] y)
        <int64[1] start = {-9223372036854775807}, int64[1] stop = {9223372036854775807}, int64[1] axis = {1},
         int64[1] step = {2}>
        { y = Slice(x, start, stop, axis, step) }""",
        {"x": np.arange(8, dtype=np.float32).reshape(2, 4)},
    )
    same(result)
    assert input_types(result, "Slice") == {"FLOAT", "INT32"}


def test_a_constant_of_shape_has_its_type_in_an_attribute(rewritten):
    result = rewritten(
        NarrowInt64(),
        """agraph (float[N,4] x) => (int64[N,4] y)
        { s = Shape(x)
          c = ConstantOfShape<value = int64[1] {7}>(s)
          y = Add(c, c) }""",
        {"x": np.zeros((2, 4), np.float32)},
    )
    same(result)
    assert input_types(result, "Add") == {"INT32"}
    assert [change.text for change in result.changes][-1].endswith("in int32 instead of int64")


@pytest.mark.parametrize(
    "body",
    [
        "y = Add(z, z)",  # from outside: any value
        "y = Mul(big, big)",
        "f = Cast<to=1>(z)\n y = Cast<to=7>(f)",
        "s = Shape(x)\n y = Mul(s, s)",  # two sizes of a tensor can multiply to more
    ],
)
def test_what_may_not_fit_stays(rewritten, body):
    result = rewritten(
        NarrowInt64(),
        f"agraph (int64[N] x, int64[1] z) => (int64[1] y) <int64[1] big = {{70000}}> {{ {body} }}",
        {"x": np.array([1, 2]), "z": np.array([2**40])},
    )
    assert result.changes == []
    same(result)


def test_bodies_are_narrowed(rewritten):
    result = rewritten(
        NarrowInt64(),
        """agraph (float[N,4] x, bool c) => (int64[2] y) <int64[2] one = {1, 1}>
        { s = Shape(x)
          y = If(c) <then_branch = t () => (int64[2] a) { a = Max(s, one) },
                     else_branch = e () => (int64[2] b) { b = Identity(s) }> }""",
        {"x": np.zeros((0, 4), np.float32), "c": np.array(True)},
        {"x": np.zeros((3, 4), np.float32), "c": np.array(False)},
    )
    same(result)
    assert input_types(result, "Max") == {"INT32"}


SMALL = {
    "bool": ("y = Gather(x, at)", np.array([True, False, True]), 2),
    "int8": ("y = Max(x, x)", np.array([-128, 127, 3], np.int8), "N"),
    "int16": ("y = Concat<axis=0>(x, x)", np.array([-32768, 32767, 0], np.int16), "M"),
    "uint8": ("t = Tile(x, one)\n y = ReduceMax<keepdims=1>(t)", np.array([0, 255, 128], np.uint8), 1),
    "uint16": ("y = Where(mask, x, x)", np.array([0, 65535, 128], np.uint16), "N"),
}


@pytest.mark.parametrize("rewrite", [SmallIntegersAsInt32(), SmallIntegersAsFloat()], ids=lambda found: found.name)
@pytest.mark.parametrize("kind", SMALL)
def test_small_integers_are_picked_in_a_wider_type(rewritten, rewrite, kind):
    body, values, size = SMALL[kind]
    result = rewritten(
        rewrite,
        f"""agraph ({kind}[N] x) => ({kind}[{size}] y)
        <int64[2] at = {{2, 0}}, int64[1] one = {{2}}, bool[1] mask = {{1}}> {{ {body} }}""",
        {"x": values},
        has_kernels=False,
    )
    same(result)
    assert result.changes
    assert "Cast" in result.ops


def test_sums_of_bytes_wrap_around_as_they_did(rewritten):
    result = rewritten(
        SmallIntegersAsInt32(),
        """agraph (uint8[3] x, uint8[3] z) => (uint8[3] y, bool[3] e)
        { a = Add(x, z)
          y = Mul(a, z)
          e = Equal(a, x) }""",
        {"x": np.array([250, 3, 0], np.uint8), "z": np.array([10, 200, 7], np.uint8)},
    )
    same(result)
    assert input_types(result, "Mul") == {"INT32"}


def test_bytes_are_not_added_as_floats(rewritten):
    body = "agraph (uint8[1] x) => (uint8[1] y) { y = Add(x, x) }"
    assert rewritten(SmallIntegersAsFloat(), body, {"x": np.array([200], np.uint8)}).changes == []


def test_integers_that_float32_holds(rewritten):
    result = rewritten(
        IntegersAsFloat(),
        """agraph (float[N,4] x, int32[2] i) => (int64[2] y, bool[2] e, int32[2] z)
        <int64 three = {3}, int32 one = {1}>
        { a = ArgMax<axis=1, keepdims=0>(x)
          m = Add(a, three)
          y = Mul(m, m)
          e = Greater(a, three)
          z = Add(i, one) }""",
        {"x": np.eye(2, 4, dtype=np.float32), "i": np.array([2**31 - 2, 5], np.int32)},
    )
    same(result)
    assert input_types(result, "Mul") == {"FLOAT"}
    assert input_types(result, "Greater") == {"FLOAT"}
    assert any(node.outputs[0].name == "z" and node.op_type == "Add" for node in graph.all_nodes(result.model))


def test_int32_as_int64(rewritten):
    result = rewritten(
        Int32AsInt64(),
        """agraph (int32[3] x, float[5] t) => (int32[3] y, float[3] g)
        { y = Add(x, x)
          g = Gather(t, x) }""",
        {"x": np.array([2, 0, 4], np.int32), "t": np.arange(5, dtype=np.float32)},
    )
    same(result)
    assert input_types(result, "Gather") == {"FLOAT", "INT64"}


@pytest.mark.parametrize("opset", [13, 17, 22])
def test_halves_in_float(rewritten, random, opset):
    x = random.normal(size=(2, 3, 4)).astype(np.float16)
    result = rewritten(
        HalfAsFloat(),
        """agraph (float16[N,3,4] x) => (float16[N,3,4] y) <float[4] f = {1.0, 2.0, -0.5, 3.0}>
        { w = Cast<to=10>(f)
          a = Mul(x, w)
          y = Softmax<axis=-1>(a) }""",
        {"x": x},
        opset=opset,
    )
    assert result.ops == ["Cast", "Cast", "Cast", "Mul", "Softmax", "Cast"]
    np.testing.assert_allclose(result.found[0][0], result.expected[0][0], rtol=1e-2, atol=2e-3)
    assert {change.bound for change in result.changes} == {"fp16"}


def test_a_cast_reads_the_number_itself(rewritten):
    """No detour through the small type, which a target may refuse in a Cast as well."""
    result = rewritten(
        SmallIntegersAsInt32(),
        """agraph (uint8[3] x) => (float[3] y, float[3] z) <uint8[1] three = {3}>
        { a = Max(x, three)
          y = Cast<to=1>(a)
          b = Add(x, three)
          z = Cast<to=1>(b) }""",
        {"x": np.array([0, 254, 7], np.uint8)},
    )
    same(result)
    # The sum wraps around, so that its Cast has to cut it off first.
    assert [node.op_type for node in graph.all_nodes(result.model)].count("Cast") == 5
