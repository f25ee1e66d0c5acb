"""float64 models computed in float32: the same interface, values within float32's rounding."""

from __future__ import annotations

import numpy as np
import pytest

from deploykit import graph
from deploykit.optimizers.rewrites.double_to_float import DoubleToFloat


def inner_types(result):
    interface = {value.name for value in (*result.model.graph.inputs, *result.model.graph.outputs)}
    values = [value for node in graph.all_nodes(result.model) for value in node.outputs]
    return {value.dtype.name for value in values if value.name not in interface and value.dtype is not None}


def agree(result):
    for before, after in zip(result.expected, result.found, strict=True):
        for a, b in zip(before, after, strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)


def test_constants_casts_and_typed_attributes(rewritten, random):
    result = rewritten(
        DoubleToFloat(),
        """agraph (double[N,3] x, float[N,3] f) => (double[N,3] y, float[N,3] z) <double[3] w = {0.5, 0.25, 1e30}>
        { c = Constant<value = double[1] {2.5}>()
          d = Cast<to=11>(f)
          s = Shape(x)
          o = ConstantOfShape<value = double[1] {3.5}>(s)
          a = Mul(x, c)
          b = Add(a, d)
          e = Add(b, o)
          y = Div(e, w)
          z = Cast<to=1>(e) }""",
        {"x": random.normal(size=(2, 3)), "f": random.normal(size=(2, 3)).astype(np.float32)},
        {"x": random.normal(size=(5, 3)), "f": random.normal(size=(5, 3)).astype(np.float32)},
    )
    agree(result)
    assert "DOUBLE" not in inner_types(result)
    assert result.changes[0].added == ("x/Cast", "y/Cast")
    assert "'x'" in result.changes[0].text


def test_bodies_and_what_they_read_from_outside(rewritten, random):
    result = rewritten(
        DoubleToFloat(),
        """agraph (double[3] x, bool c) => (double[3] y) <double[3] w = {0.5, 0.25, 4.0}>
        { y = If(c) <then_branch = t () => (double[3] p) { p = Mul(x, w) },
                     else_branch = e () => (double[3] q) { k = Constant<value = double[1] {7.0}>()
                                                           q = Sub(x, k) }> }""",
        {"x": random.normal(size=3), "c": np.array(True)},
        {"x": random.normal(size=3), "c": np.array(False)},
    )
    agree(result)
    assert "DOUBLE" not in inner_types(result)


def test_an_output_that_is_read_inside_as_well(rewritten, random):
    result = rewritten(
        DoubleToFloat(),
        """agraph (double[3] x) => (double[3] y, double[3] z)
        { y = Exp(x)
          z = Neg(y) }""",
        {"x": random.normal(size=3)},
    )
    agree(result)


def test_an_input_that_is_an_output_stays_what_it_is(rewritten, random):
    result = rewritten(
        DoubleToFloat(),
        """agraph (double[3] x) => (double[3] y, double[3] z) <double[3] z = {1.0, 2.0, 3.0}>
        { y = Add(x, z) }""",
        {"x": random.normal(size=3)},
    )
    agree(result)
    np.testing.assert_array_equal(result.found[0][1], [1.0, 2.0, 3.0])


@pytest.mark.parametrize("value", ["1e39", "-1e300"])
def test_constants_beyond_float32_are_no_fit(rewritten, value):
    result = rewritten(
        DoubleToFloat(),
        f"""agraph (double[1] x) => (double[1] y) <double[1] w = {{{value}}}>
        {{ y = Add(x, w) }}""",
        {"x": np.zeros(1)},
    )
    assert result.changes == []


def test_infinities_are_kept(rewritten):
    model = """agraph (double[2] x) => (double[2] y)
        { zero = Constant<value = double[1] {0.0}>()
          one = Constant<value = double[1] {1.0}>()
          i = Div(one, zero)
          y = Max(x, i) }"""
    result = rewritten(DoubleToFloat(), model, {"x": np.zeros(2)})
    assert np.isinf(result.found[0][0]).all()


def test_a_float_model_is_left_alone(rewritten):
    result = rewritten(
        DoubleToFloat(), "agraph (float[2] x) => (float[2] y) { y = Neg(x) }", {"x": np.zeros(2, np.float32)}
    )
    assert result.changes == []
