"""Where the native simplifier has to leave a graph alone: what it changed once, or could be thought to change."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from deploykit import graph
from deploykit.equivalence import interface_differences, kept_differences
from deploykit.optimizers.engines import native_job

if TYPE_CHECKING:
    from pathlib import Path

HEADER = '<ir_version: 9, opset_import: ["": {opset}, "custom.x": 1, "f": 1]>\n'
Feeds = dict[str, np.ndarray]


def model(text: str, opset: int = 17, **constants: np.ndarray) -> onnx.ModelProto:
    made = onnx.parser.parse_model(HEADER.format(opset=opset) + text)
    made.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    return made


def simplified(before: onnx.ModelProto, folder: Path) -> list[str]:
    """Writes in.onnx and out.onnx; the interface and what has to be kept are the same. Returns operators."""
    (folder / "in.onnx").write_bytes(before.SerializeToString())
    native_job(str(folder / "in.onnx"), str(folder / "out.onnx"))
    old, new = graph.load(folder / "in.onnx"), graph.load(folder / "out.onnx")
    assert [f.message for f in (*interface_differences(old, new), *kept_differences(old, new))] == []
    assert Counter(n.op_type for n in graph.all_nodes(new)).total() <= len(list(graph.all_nodes(old)))
    return [node.op_type for node in graph.all_nodes(new)]


def session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def same(folder: Path, *feeds: Feeds, rtol: float = 1e-4, atol: float = 1e-5) -> int:
    """Compares in.onnx with out.onnx on whatever the original takes; returns on how many feeds."""
    old, new = session(folder / "in.onnx"), session(folder / "out.onnx")
    taken = 0
    for given in feeds:
        try:
            expected = old.run(None, given)
        except Exception:  # onnxruntime's own classes: sizes that the original does not take
            continue
        taken += 1
        for want, have in zip(expected, new.run(None, given), strict=True):
            assert (have.dtype, have.shape) == (want.dtype, want.shape)
            np.testing.assert_allclose(have, want, rtol=rtol, atol=atol)
    return taken


def sized(before: onnx.ModelProto, sizes: tuple[int, ...] = (0, 1, 2, 3)) -> list[Feeds]:
    """Random floats for every combination of sizes; each unknown size of each input has its own."""
    rng, given = np.random.default_rng(0), {init.name for init in before.graph.initializer}
    inputs = [value for value in before.graph.input if value.name not in given]
    shapes = [[dim.dim_value or None for dim in value.type.tensor_type.shape.dim] for value in inputs]
    free = sum(shape.count(None) for shape in shapes)
    feeds = []
    for chosen in product(sizes, repeat=free):
        left = iter(chosen)
        full = [[next(left) if size is None else size for size in shape] for shape in shapes]
        feeds.append(
            {v.name: rng.standard_normal(shape).astype(np.float32) for v, shape in zip(inputs, full, strict=True)}
        )
    return feeds


GATHER = "s = Shape(x) u = Gather(s, i0)"
KEPT = {
    "copied size and unknown size, one of them zero": f"""agraph (float[n,m] x, float[k] w) => (float[a,b] y)
        <int64[1] i0 = {{0}}> {{ {GATHER} s2 = Shape(w) t = Concat <axis=0> (u, s2) y = Reshape(x, t) }}""",
    "one name for two sizes": f"""agraph (float[n,m] x, float[n,m] w) => (float[a,b] y)
        <int64[1] i0 = {{0}}, int64[1] i1 = {{1}}>
        {{ {GATHER} s2 = Shape(w) v = Gather(s2, i1) t = Concat <axis=0> (u, v) y = Reshape(x, t) }}""",
    "one name twice in a shape": f"""agraph (float[n,n] x) => (float[a,b] y) <int64[1] i0 = {{0}}, int64[1] i1 = {{1}}>
        {{ {GATHER} v = Gather(s, i1) t = Concat <axis=0> (v, u) y = Reshape(x, t) }}""",
    "product of sizes": f"""agraph (float[n,m,4] x) => (float[a,b] y) <int64[1] i0 = {{0}}, int64[1] i1 = {{1}}>
        {{ {GATHER} v = Gather(s, i1) p = Mul(u, v) q = Div(p, v) t = Concat <axis=0> (q, v) z = Expand(u, t)
           y = Cast <to=1> (z) }}""",
    "a size that an output wrongly declares": """agraph (float[n,4] x) => (float[n,4] y, float[a,b] z)
        <int64[1] i0 = {0}, int64[1] width = {8}>
        { r = Relu(x) y = Concat <axis=0> (r, r) s = Shape(y) u = Gather(s, i0) t = Concat <axis=0> (u, width)
          w = Concat <axis=1> (y, y) z = Reshape(w, t) }""",
    "a number that an output wrongly declares": """agraph (float[n,4] x) => (float[2,4] y, int64[2] z)
        { y = Relu(x) z = Shape(y) }""",
    "an output known better than declared": "agraph (float[n,4] x) => (float[a,b] y) { y = Relu(x) }",
    "numbers of squeezed axes": """agraph (float[n,m] x) => (float[a] y) <int64[1] i0 = {0}>
        { u = Unsqueeze(x, i0) z = Squeeze(u) r = Reshape(z, flat) y = Relu(r) } """,
    "sums that round": """agraph (float[n] x) => (float[n] y) <float m = {12582912.0}, float k = {-12582912.0}>
        { a = Add(x, m) y = Add(a, k) }""",
    "sums that round after a product": """agraph (float[n,2] x) => (float[n,2] y)
        <float[2,2] w = {1,2,3,4}, float[2] b = {12582912.0, 12582912.0}>
        { m = MatMul(x, w) a = Add(m, b) y = Sub(a, b) }""",
    "factors that vanish together": """agraph (float[n] x) => (float[n] y)
        <float m = {1e-30}, float k = {1e-30}, float q = {1e38}>
        { h = Mul(x, q) a = Mul(h, m) b = Mul(a, k) c = Mul(b, q) y = Mul(c, q) }""",
    "a matrix product over nothing": """agraph (float[n,k] x, float[k,3] w) => (float[a,b] y) <float[3] b1 = {1,2,3}>
        { m = MatMul(x, w) y = Add(m, b1) }""",
    "a float by way of an integer": "agraph (float[n] x) => (float[n] y) { k = Cast <to=7> (x) y = Cast <to=1> (k) }",
    "a float by way of a half": "agraph (float[n] x) => (float[n] y) { k = Cast <to=10> (x) y = Cast <to=1> (k) }",
    "pads below zero": """agraph (float[n,1,5,5] x) => (float[a,b,c,d] y)
        <int64[8] p = {0,0,-1,1,0,0,1,-1}, float[1,1,2,2] w = {1,2,3,4}>
        { k = Pad(x, p) y = Conv <pads=[1,1,1,1]> (k, w) }""",
    "statistics of training": """agraph (float[n,3,2,2] x) => (float[n,3,2,2] y, float[3] mean)
        <float[3] s = {1,2,3}, float[3] b = {1,2,3}, float[3] m = {1,2,3}, float[3] v = {1,2,3},
         float[3,3,1,1] w = {1,2,3,4,5,6,7,8,9}>
        { c = Conv(x, w) y, mean, var = BatchNormalization <training_mode=1> (c, s, b, m, v) }""",
    "outputs left out by one of two": """agraph (float[n,1,4,4] x) => (float[a,b,c,d] y, int64[e,f,g,h] z)
        { p = MaxPool <kernel_shape=[2,2]> (x) q, i = MaxPool <kernel_shape=[2,2]> (x) y = Relu(p) z = Add(i, i) }""",
    "channels of a transposed convolution": """agraph (float[n,3,1,3] x) => (float[a,b,c,d] y)
        <float[3,3,1,1] w = {0,1,2,3,4,5,6,7,8}, float[3] s = {1,2,3}> { g = ConvTranspose(x, w) y = Mul(g, s) }""",
}


@pytest.mark.parametrize("text", KEPT.values(), ids=list(KEPT))
def test_values_and_sizes_stay(text, tmp_path):
    before = model(text, **({"flat": np.array([-1])} if "flat" in text else {}))
    simplified(before, tmp_path)
    assert same(tmp_path, *sized(before))


@pytest.mark.parametrize(
    ("text", "opset"),
    [
        ("int32[1] y) <int64[1] b = {4294967301}> { c = Cast <to=6> (b) y = Add(c, c)", 17),
        ("int32[1] y) <int32[1] b = {1073741824}> { c = Mul(b, b) d = Add(c, b) e = Add(d, d) y = Add(e, b)", 17),
        ("int64[1] y) <int64[1] b = {4611686018427387904}> { c = Add(b, b) y = Add(c, b)", 17),
        ("int64[2] y) <int64[2] b = {-7, 7}, int64[2] c = {2, -2}> { y = Div(b, c)", 17),
        ("int32[2] y) <int32[2] b = {100, 3}, int32[2] c = {100, 5}> { y = Pow(b, c)", 17),
        ("string[2] y) <float[2] b = {0.1, 1e10}> { y = Cast <to=8> (b)", 17),
        ("float[2,2,2] y) <float[2,2,2] b = {1,2,3,4,5,6,7,8}> { y = Softmax(b)", 11),
        ("float[3] y) <float[3] b = {0.5,2,-3}, float top = {1}> { y = Clip(b, , top)", 17),
    ],
    ids=["cast", "product", "sum", "division", "power", "text", "old softmax", "left out"],
)
def test_folded_is_what_onnxruntime_computes(text, opset, tmp_path):
    simplified(model(f"agraph (float[n] x) => (float[n] r, {text} r = Relu(x) }}", opset), tmp_path)
    old, new = session(tmp_path / "in.onnx"), session(tmp_path / "out.onnx")
    feeds = {"x": np.ones(1, np.float32)}
    for want, have in zip(old.run(None, feeds), new.run(None, feeds), strict=True):
        np.testing.assert_array_equal(have, want)


def test_relu_of_the_smallest_integer_stays(tmp_path):
    simplified(model("agraph (int32[n] x) => (int32[n] y) { a = Abs(x) y = Relu(a) }"), tmp_path)
    assert same(tmp_path, {"x": np.array([-(2**31), 3], np.int32)})


def test_normalization_of_doubles_keeps_their_precision(tmp_path):
    text = """agraph (double[n,4] x) => (double[n,4] y)
        { m = ReduceMean <axes=[-1]> (x) d = Sub(x, m) p = Mul(d, d) v = ReduceMean <axes=[-1]> (p) e = Add(v, eps)
          r = Sqrt(e) q = Div(d, r) g = Mul(q, w) y = Add(g, w) }"""
    simplified(model(text, eps=np.array(1e-5), w=np.arange(4.0)), tmp_path)
    assert same(tmp_path, {"x": np.random.default_rng(0).standard_normal((3, 4))}, rtol=1e-12, atol=1e-12)


def test_a_default_that_a_caller_replaces_shapes_nothing(tmp_path):
    text = """agraph (float[n,4] x, int64[2] s) => (float[a,b] y, float[c] z) <int64[2] s = {2,4}>
        { y = Reshape(x, s) k = Shape(y) z = Cast <to=1> (k) }"""
    simplified(model(text), tmp_path)
    x = np.ones((2, 4), np.float32)
    assert same(tmp_path, {"x": x}, {"x": x, "s": np.array([4, 2])}) == 2


@pytest.mark.parametrize(
    "body",
    [
        "r = RandomNormal <shape=[2]> () d = Relu(r) y = Relu(x)",
        "d = custom.x.Foo(x) y = Relu(x)",
        (
            "y = If (c) <then_branch = t () => (float[n] a) { a = Relu(x) }, "
            "else_branch = e () => (float[n] b) { b = RandomNormalLike(x) }>"
        ),
        (
            "d = If (k) <then_branch = t () => (float[n] a) { a = custom.x.Foo(x) }, "
            "else_branch = e () => (float[n] b) { b = Abs(x) }> y = Relu(x)"
        ),
        "a = Dropout <seed=1> (x, half, c) b = Dropout <seed=1> (x, half, c) y = Sub(a, b)",
    ],
    ids=["random", "custom", "branch never run", "in a branch that nothing reads", "dropout"],
)
def test_random_and_custom_nodes_stay_though_nothing_reads_them(body, tmp_path):
    text = f"agraph (float[n] x, bool k) => (float[n] y) <bool c = {{1}}, float half = {{0.5}}> {{ {body} }}"
    left = simplified(model(text), tmp_path)
    assert left.count("Dropout") in (0, 2)


def test_functions_that_may_be_random_are_called_as_often_as_before(tmp_path):
    text = """agraph (float[n] x) => (float[n] y) { a = f.R(x) b = f.R(x) y = Sub(a, b) }
        <domain: "f", opset_import: ["": 17]> R (x) => (y) { r = RandomNormalLike(x) y = Add(x, r) }"""
    assert simplified(model(text), tmp_path).count("R") == 2
