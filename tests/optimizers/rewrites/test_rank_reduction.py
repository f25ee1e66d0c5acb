"""Rearrangements through many dimensions: any permutation within rank 5, and the cases that exporters write."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploykit import graph
from deploykit.optimizers.rewrites.layouts import DecomposeLayouts
from deploykit.optimizers.rewrites.permuting import merged
from deploykit.optimizers.rewrites.rank_reduction import ReduceRank


@given(st.permutations(range(8)), st.integers(6, 8), st.integers(4, 5))
def test_steps_give_the_permutation_within_the_limit(order, count, limit):
    order = [axis for axis in order if axis < count]
    sizes = [2, 3, 2, 3, 2, 3, 2, 2][:count]
    array = np.arange(np.prod(sizes))
    expected = array.reshape(sizes).transpose(order).ravel()
    for groups, swapped in merged(order, limit):
        assert len(groups) <= limit
        assert sorted(swapped) == list(range(len(groups)))
        array = array.reshape([int(np.prod([sizes[at] for at in group])) for group in groups]).transpose(swapped)
    assert (array.ravel() == expected).all()


def largest_rank(model):
    return max(len(value.shape) for node in graph.all_nodes(model) for value in node.outputs)


def text(shape, to, order, back, out, between=""):
    return f"""<ir_version: 8, opset_import: ["": 17]>
    agraph (float[{shape}] x) => (float[{out}] y)
    <int64[{len(to)}] a = {{{", ".join(map(str, to))}}}, int64[{len(back)}] b = {{{", ".join(map(str, back))}}}> {{
        p = Reshape (x, a)
        {between or "q = Identity (p)"}
        t = Transpose <perm = [{", ".join(map(str, order))}]> (q)
        y = Reshape (t, b)
    }}"""


def test_shared_case_of_a_window_partition(shared, unchanged_values):
    model = onnx.load(shared / "cases" / "rank6_window.onnx")
    ops = unchanged_values(ReduceRank(), model)
    made = graph.name_nodes(ir.from_proto(model))
    graph.infer_shapes(made)
    changes = ReduceRank().apply(made, [node for node in made.graph if node.name == "part6"])
    assert changes[0].removed == ("part6", "perm6", "n_y")
    assert largest_rank(graph.infer_shapes(made)) <= 5
    assert ops == ["Reshape", "Transpose", "Reshape"]


@settings(max_examples=25, deadline=None)
@given(order=st.permutations(range(7)), rank=st.integers(6, 7))
def test_any_permutation(order, rank, unchanged_values):
    order = [axis for axis in order if axis < rank]
    sizes = [2, 3, 2, 1, 2, 3, 2][:rank]
    total = int(np.prod(sizes))
    model = text(f"{total // 6}, 6", sizes, order, [2, -1], f"2, {total // 2}")
    ops = unchanged_values(ReduceRank(), model)
    assert "Identity" in ops
    made = graph.infer_shapes(graph.name_nodes(ir.from_proto(onnx.parser.parse_model(model))))
    ReduceRank().apply(made, list(made.graph))
    assert largest_rank(graph.infer_shapes(made)) <= 5


@pytest.mark.parametrize("to", [[0, 2, 4, 2, 4, 4], [-1, 2, 4, 2, 4, 4], [0, 2, 4, 2, 4, -1]])
def test_a_dynamic_batch_stays_dynamic(to, unchanged_values):
    model = text("N, 8, 8, 4", to, [0, 1, 3, 2, 4, 5], [-1, 16, 4], "M, 16, 4", "r = Relu (p) q = Cast <to = 1> (r)")
    unchanged_values(ReduceRank(), model, {"N": 1}, {"N": 3})


def test_two_dynamic_dimensions(unchanged_values):
    model = text("N, 8, W, 4", [0, 2, 4, -1, 4, 4], [0, 1, 3, 2, 4, 5], [-1, 16, 4], "M, 16, 4")
    unchanged_values(ReduceRank(), model, {"N": 1, "W": 8}, {"N": 3, "W": 4})


@pytest.mark.parametrize("end", ["int64[3] b", ""])
def test_sizes_computed_at_run_time(end, unchanged_values):
    computed = "b = Identity (c)" if end else "s = Shape (x) n = Slice (s, z, o) b = Concat <axis = 0> (n, d, e)"
    inputs = "float[N, 8, 8, 4] x" + (", int64[3] c" if end else "")
    model = f"""<ir_version: 8, opset_import: ["": 17]>
    agraph ({inputs}) => (float[P, Q, R] y)
    <int64[6] a = {{0, 2, 4, 2, 4, 4}},
     int64[1] z = {{0}}, int64[1] o = {{1}}, int64[1] d = {{64}}, int64[1] e = {{4}}> {{
        {computed}
        p = Reshape (x, a)
        t = Transpose <perm = [0, 1, 3, 2, 4, 5]> (p)
        y = Reshape (t, b)
    }}"""
    x = np.random.default_rng(0).normal(size=(3, 8, 8, 4)).astype(np.float32)
    feeds = {"x": x, "c": np.array([12, 16, 4])} if end else {"x": x}
    unchanged_values(ReduceRank(), model, feeds=feeds)


def test_unsqueezes_that_end_in_a_squeeze(unchanged_values):
    model = """<ir_version: 8, opset_import: ["": 17]>
    agraph (float[2, 3, 4, 5] x) => (float[3, 2, 5, 4] y) <int64[2] a = {0, 3}, int64[2] b = {1, 2}> {
        p = Unsqueeze (x, a)
        t = Transpose <perm = [2, 0, 3, 1, 5, 4]> (p)
        y = Squeeze (t, b)
    }"""
    unchanged_values(ReduceRank(), model)


def test_what_others_read_or_compute_with_is_declined(never_applies):
    shape = ("2, 8, 8, 4", [2, 2, 4, 2, 4, 4], [0, 1, 3, 2, 4, 5], [8, 16, 4], "8, 16, 4")
    never_applies(ReduceRank(), text(*shape, "s = ReduceSum <keepdims = 1> (p) q = Add (p, s)"))
    never_applies(
        ReduceRank(), text(*shape).replace("=> (float[8, 16, 4] y", "=> (float[2,2,4,2,4,4] p, float[8, 16, 4] y")
    )
    never_applies(ReduceRank(), text("2, 8, 8", [2, 8, 2, 4], [0, 1, 3, 2], [16, 8], "16, 8"))


@pytest.mark.parametrize("op", ["DepthToSpace", 'DepthToSpace <mode = "CRD">', "SpaceToDepth"])
@pytest.mark.parametrize("shape", ["2, 8, 4, 6", "N, 8, 4, 6", "N, 8, H, W"])
@pytest.mark.parametrize("opset", [11, 13])
def test_depth_and_space(op, shape, opset, unchanged_values):
    call = op.replace("<", "<blocksize = 2, ") if "<" in op else f"{op} <blocksize = 2>"
    inside = {"N": 3, "H": 2, "W": 4}
    out = ["A", "B", "C", "D"]
    if "N" not in shape:
        out = ["2", "32", "2", "3"] if op == "SpaceToDepth" else ["2", "2", "8", "12"]
    model = f"""<ir_version: 8, opset_import: ["": {opset}]>
    agraph (float[{shape}] x) => (float[{", ".join(out)}] y) {{ y = {call} (x) }}"""
    ops = unchanged_values(DecomposeLayouts(), model, inside)
    assert not {"DepthToSpace", "SpaceToDepth"} & set(ops)
    assert ops.count("Transpose") == 1
