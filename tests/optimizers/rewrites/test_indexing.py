"""Shapes, pads and positions as constants, compared with onnxruntime's own kernels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploykit.optimizers.rewrites.indexing import ConstantIndices


def model(body, inputs="float[N, 4, 5] x", outputs="float[A, B, C] y", constants="", opset=18):
    return f"""<ir_version: 8, opset_import: ["": {opset}]>
    agraph ({inputs}) => ({outputs}) {f"<{constants}>" if constants else ""} {{ {body} }}"""


def ints(name, values):
    return f"int64[{len(values)}] {name} = {{{', '.join(map(str, values))}}}"


@pytest.mark.parametrize(
    ("shape", "out"), [([0, 20], "N, 20"), ([0, 0, 5, 1], "N, 4, 5, 1"), ([-1, 0], "A, 4"), ([0, 2, -1], "N, 2, 10")]
)
def test_reshape_without_zeros(shape, out, unchanged_values):
    text = model("y = Reshape (x, s)", outputs=f"float[{out}] y", constants=ints("s", shape))
    unchanged_values(ConstantIndices(), text, {"N": 2}, {"N": 1})


def test_reshape_to_a_computed_shape(unchanged_values):
    body = "h = Shape <end = 1> (x) s = Concat <axis = 0> (h, r) y = Reshape (x, s)"
    text = model(body, outputs="float[N, 20] y", constants=ints("r", [20]))
    assert unchanged_values(ConstantIndices(), text, {"N": 3})[-1] == "Reshape"


def test_reshape_with_two_unknown_sizes_is_declined(never_applies):
    never_applies(ConstantIndices(), model("y = Reshape (x, s)", "float[N, M, 6] x", constants=ints("s", [0, 0, 3, 2])))


@pytest.mark.parametrize("shape", [[3, 4, 5], [2, 1, 4, 5], [1, 1, 1, 1]])
def test_expand_as_tile(shape, unchanged_values):
    out = [str(max(size, own)) for size, own in zip(shape[::-1], [5, 4, 1, 1], strict=False)][::-1]
    text = model(
        "y = Expand (x, s)", "float[1, 4, 1] x" if len(shape) == 3 else "float[4, 5] x", f"float[{', '.join(out)}] y",
        ints("s", shape),
    )  # fmt: skip
    assert unchanged_values(ConstantIndices(), text)[-1] == "Tile"


@settings(max_examples=40, deadline=None)
@given(
    amounts=st.lists(st.integers(-2, 3), min_size=4, max_size=4),
    axes=st.sampled_from([[1, 2], [2, 1], [-1, 1]]),
    value=st.booleans(),
)
def test_any_pads(amounts, axes, value, unchanged_values):
    constants = ", ".join([ints("p", amounts), ints("a", axes), "float v = {1.5}"])
    text = model(f"y = Pad (x, p, {'v' if value else ''}, a)", constants=constants)
    unchanged_values(ConstantIndices(), text, {"N": 2})


@settings(max_examples=30, deadline=None)
@given(amounts=st.lists(st.integers(0, 3), min_size=4, max_size=4), mode=st.sampled_from(["reflect", "edge", "wrap"]))
def test_any_mirrored_pads(amounts, mode, unchanged_values):
    first, second, third, fourth = amounts
    text = model(
        f'y = Pad <mode = "{mode}"> (x, p)', constants=ints("p", [0, first, second, 0, third, fourth]), opset=19
    )
    assert "Pad" not in unchanged_values(ConstantIndices(), text, {"N": 2})


def test_mirrored_pads_of_an_unknown_size_are_declined(never_applies):
    text = model('y = Pad <mode = "reflect"> (x, p)', constants=ints("p", [1, 0, 0, 0, 0, 0]))
    never_applies(ConstantIndices(), text)


@settings(max_examples=40, deadline=None)
@given(start=st.integers(-7, 7), end=st.integers(-8, 7), step=st.integers(-3, -1))
def test_slices_backwards(start, end, step, unchanged_values):
    constants = ", ".join([ints("s", [start, 1]), ints("e", [end, 4]), ints("a", [2, -2]), ints("t", [step, 2])])
    text = model("y = Slice (x, s, e, a, t)", constants=constants, outputs="float[N, 2, C] y")
    unchanged_values(ConstantIndices(), text, {"N": 2})


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_last_of_equal_extremes(op, keepdims, unchanged_values):
    text = model(
        f"y = {op} <axis = 1, keepdims = {keepdims}, select_last_index = 1> (x)",
        outputs="int64[N, 1, 5] y" if keepdims else "int64[N, 5] y",
    )
    x = np.array([[1, 2, 2, 1, 0], [3, 2, 1, 1, 0], [3, 1, 2, 1, 0], [1, 1, 1, 1, 0]], np.float32)[None]
    unchanged_values(ConstantIndices(), text, feeds={"x": x})


@pytest.mark.parametrize(("opset", "count"), [(11, 2), (13, 2), (18, 3)])
def test_sizes_of_parts(opset, count, unchanged_values):
    names = ["a", "b", "c"][:count]
    more = f", num_outputs = {count}" if opset >= 18 else ""
    sizes = [2, 2] if count == 2 else [2, 2, 1]
    axis = 1 if count == 2 else 2
    shape = {1: "N, {}, 5", 2: "N, 4, {}"}[axis]
    text = model(
        f"{', '.join(names)} = Split <axis = {axis}{more}> (x)",
        outputs=", ".join(f"float[{shape.format(size)}] {name}" for name, size in zip(names, sizes, strict=True)),
        opset=opset,
    )
    unchanged_values(ConstantIndices(), text, {"N": 2})


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_one_hot(axis, unchanged_values):
    text = model(
        f"y = OneHot <axis = {axis}> (i, d, v)", "int64[2, 3] i", constants="int64 d = {4}, float[2] v = {0.5, 2}"
    )
    feeds = {"i": np.array([[0, 3, -1], [1, -4, 9]])}
    unchanged_values(ConstantIndices(), text, feeds=feeds)
