"""Ranges hold what the operators give, for random graphs of integer operators."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from deploykit import graph
from deploykit.optimizers.rewrites.value_ranges import fits, range_of

STEPS = {
    "add": "{o} = Add({a}, {b})",
    "sub": "{o} = Sub({a}, {b})",
    "mul": "{o} = Mul({a}, {b})",
    "max": "{o} = Max({a}, {b})",
    "min": "{o} = Min({a}, {b})",
    "neg": "{o} = Neg({a})",
    "abs": "{o} = Abs({a})",
    "sign": "{o} = Sign({a})",
    "concat": "{o}c = Concat<axis=0>({a}, {b})\n {o} = Slice({o}c, one, four)",
    "mod": "{o} = Mod({a}, three)",
    "fmod": "{o} = Mod<fmod=1>({a}, minus)",
    "div": "{o} = Div({a}, three)",
    "clip": "{o} = Clip({a}, scalar, big)",
    "pick": "{o} = Gather({a}, pick)",
    "widen": "{o} = Cast<to=7>({a})",
}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=6),
    st.integers(0, 2**31),
)
def test_no_value_leaves_its_range(steps, seed):
    names, lines = ["x", "y"], ["x = Cast<to=7>(p)", "y = Cast<to=7>(q)"]
    for at, (kind, a, b) in enumerate(steps):
        lines.append(STEPS[kind].format(o=f"v{at}", a=names[a % len(names)], b=names[b % len(names)]))
        names.append(f"v{at}")
    text = f"""<ir_version: 9, opset_import: ["": 17]>
        agraph (int8[3] p, uint8[3] q) => (int64[3] {names[-1]})
        <int64[1] one = {{1}}, int64[1] four = {{4}}, int64 three = {{3}}, int64 minus = {{-7}},
         int64 scalar = {{-20}}, int64 big = {{90}}, int64[3] pick = {{2, 0, 1}}>
        {{ {chr(10).join(lines)} }}"""
    proto = onnx.parser.parse_model(text)
    model = graph.infer_shapes(ir.from_proto(proto))
    found = range_of(model.graph.outputs[0])
    assert found is not None
    random = np.random.default_rng(seed)
    for _ in range(4):
        feeds = {"p": random.integers(-128, 128, 3).astype(np.int8), "q": random.integers(0, 256, 3).astype(np.uint8)}
        values = ReferenceEvaluator(proto).run(None, feeds)[0]
        assert found[0] <= values.min()
        assert values.max() <= found[1]


def value(body: str, name: str = "y") -> ir.Value:
    proto = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]>\nagraph {body}')
    model = graph.infer_shapes(ir.from_proto(proto))
    return next(v for node in graph.all_nodes(model) for v in node.outputs if v.name == name)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("(float[2,7] x) => (int64[2] y) { y = Shape(x) }", (2, 7)),
        ("(float[N,7] x) => (int64[2] y) { y = Shape(x) }", (0, 2**31 - 1)),
        ("(float[2,7] x) => (int64 y) { y = Size(x) }", (14, 14)),
        ("(float[2,7] x) => (int64[1,7] y) { y = ArgMax<axis=0>(x) }", (0, 1)),
        ("(float[2,7] x) => (int64[2,K] y) { y = NonZero(x) }", (0, 2**31 - 1)),
        ("(bool[7] x) => (int64 y) { c = Cast<to=7>(x)\n y = ReduceSum<keepdims=0>(c) }", (0, 7)),
        ("(int64[2] x) => (int64[2] y) { y = Abs(x) }", None),
        ("(int64[2] x) => (int64[2] y) { y = Identity(x) }", (-(2**63), 2**63 - 1)),
    ],
)
def test_ranges(body, expected):
    found = range_of(value(body))
    assert found == expected or (expected is None and not fits(value(body), ir.DataType.INT32))


def test_what_wraps_around_has_all_of_its_type():
    assert range_of(value("(uint8[2] x) => (uint8[2] y) <uint8 one = {1}> { y = Add(x, one) }")) == (0, 255)


def test_float32_counts_to_two_to_the_24():
    big, small = "uint32[2] x", "uint16[2] x"
    assert fits(value(f"({small}) => (uint16[2] y) {{ y = Identity(x) }}"), ir.DataType.FLOAT)
    assert not fits(value(f"({big}) => (uint32[2] y) {{ y = Identity(x) }}"), ir.DataType.FLOAT)
