"""Tensors of more than five dimensions inside a graph, against onnxruntime; what is refused is refused by name."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings, strategies

from deploykit.converters.coreml.ranks import transposition

NUMBERS = ",".join(map(str, range(24)))
RANDOM = np.random.default_rng(3)
# name: (inputs with their sizes, constants, body, opset). Symbols are bounded by 1..4 of their blocks.
CASES = {
    "window partition": (
        {"x": (2, 8, 8, 3)},
        "int64[6] a = {2,2,4,2,4,3}, int64[4] b = {-1,4,4,3}",
        "v = Reshape (x, a)\n t = Transpose <perm=[0,1,3,2,4,5]> (v)\n y = Reshape (t, b)", 17),
    "window partition, any batch": (
        {"x": ("n", 8, 8, 3)},
        "int64[6] a = {-1,2,4,2,4,3}, int64[4] b = {-1,4,4,3}",
        "v = Reshape (x, a)\n t = Transpose <perm=[0,1,3,2,4,5]> (v)\n y = Reshape (t, b)", 17),
    "window partition, any size": (
        {"x": ("n", "4h", "4w", 3)},
        ("int64 four = {4}, int64 i0 = {0}, int64 i1 = {1}, int64 i2 = {2}, int64[1] z = {0}, int64[1] f = {4}, "
         "int64[1] c = {3}, int64[4] b = {-1,4,4,3}"),
        ("s = Shape (x)\n n = Gather (s, i0)\n h = Gather (s, i1)\n w = Gather (s, i2)\n"
         "hh = Div (h, four)\n ww = Div (w, four)\n n1 = Unsqueeze (n, z)\n h1 = Unsqueeze (hh, z)\n"
         "w1 = Unsqueeze (ww, z)\n a = Concat <axis=0> (n1, h1, f, w1, f, c)\n"
         "v = Reshape (x, a)\n t = Transpose <perm=[0,1,3,2,4,5]> (v)\n y = Reshape (t, b)"), 17),
    "window reverse": (
        {"x": (8, 4, 4, 3)}, "int64[6] a = {-1,2,2,4,4,3}, int64[4] b = {-1,8,8,3}",
        "v = Reshape (x, a)\n t = Transpose <perm=[0,1,3,2,4,5]> (v)\n y = Reshape (t, b)", 17),
    "pixel shuffle": (
        {"x": ("n", 12, 3, 5)}, "int64[6] a = {0,3,2,2,3,5}, int64[4] b = {0,3,6,10}",
        "v = Reshape (x, a)\n t = Transpose <perm=[0,1,4,2,5,3]> (v)\n y = Reshape (t, b)", 17),
    "space to depth": (
        {"x": ("n", 3, 6, 10)}, "int64[6] a = {0,3,3,2,5,2}, int64[4] b = {0,12,3,5}",
        "v = Reshape (x, a)\n t = Transpose <perm=[0,1,3,5,2,4]> (v)\n y = Reshape (t, b)", 17),
    "channel shuffle in 3-D": (
        {"x": (2, 6, 2, 3, 4)}, "int64[6] a = {2,2,3,2,3,4}, int64[5] b = {2,6,2,3,4}",
        "v = Reshape (x, a)\n t = Transpose <perm=[0,2,1,3,4,5]> (v)\n y = Reshape (t, b)", 17),
    "pixel shuffle in 3-D, rank 8": (
        {"x": (2, 16, 2, 3, 4)}, "int64[8] a = {2,2,2,2,2,2,3,4}, int64[5] b = {2,2,4,6,8}",
        "v = Reshape (x, a)\n t = Transpose <perm=[0,1,5,2,6,3,7,4]> (v)\n y = Reshape (t, b)", 17),
    "reversed axes, rank 7": (
        {"x": (2, 6, 6, 12)}, "int64[7] a = {2,3,2,2,3,4,3}, int64[2] b = {12,-1}",
        "v = Reshape (x, a)\n t = Transpose (v)\n y = Reshape (t, b)", 17),
    "nearest upsampling": (
        {"x": ("n", 3, 4, 5)}, "int64[2] u = {3,5}, int64[6] e = {1,1,1,2,1,3}, int64[4] b = {0,3,8,15}",
        "v = Unsqueeze (x, u)\n w = Expand (v, e)\n y = Reshape (w, b)", 17),
    "elementwise between transposes": (
        {"x": ("n", 4, 6, 8)},
        "int64[6] a = {0,2,2,3,2,8}, int64[4] b = {0,12,4,4}, float[3,1,1] k = {1,2,3}, float two = {2}",
        ("v = Reshape (x, a)\n t = Transpose <perm=[0,3,1,4,2,5]> (v)\n r = Relu (t)\n m = Mul (r, two)\n"
         "i = Transpose <perm=[0,2,4,1,3,5]> (m)\n q = Add (i, v)\n o = Mul (q, k)\n"
         "j = Transpose <perm=[0,1,2,4,3,5]> (o)\n y = Reshape (j, b)"), 17),
    "broadcasting that alternates": (
        {"x": (2, 3, 2, 3, 2), "z": (3, 1, 3)}, "int64[6] a = {2,3,2,3,2,1}, int64[2] b = {36,-1}",
        "v = Reshape (x, a)\n m = Mul (v, z)\n y = Reshape (m, b)", 17),
    "reductions": (
        {"x": ("n", 6, 6, 4)}, "int64[6] a = {0,2,3,3,2,4}, int64[2] b = {0,-1}",
        ("v = Reshape (x, a)\n m = ReduceMean <axes=[2,4], keepdims=0> (v)\n p = ReduceMax <axes=[1,3,5]> (v)\n"
         "k = Sub (v, p)\n f = Reshape (k, b)\n g = Reshape (m, b)\n y = Concat <axis=1> (f, g)"), 17),
    "softmax, slice, split, concat": (
        {"x": (2, 6, 6, 4)},
        "int64[6] a = {2,2,3,3,2,4}, int64[1] s = {1}, int64[1] e = {9}, int64[1] ax = {3}, int64[2] b = {2,-1}",
        ("v = Reshape (x, a)\n m = Softmax <axis=4> (v)\n c = Slice (m, s, e, ax)\n"
         "p, q = Split <axis=1> (c)\n j = Concat <axis=2> (q, p)\n y = Reshape (j, b)"), 17),
    "gather and heads": (
        {"x": (2, 10, 24)},
        ("int64[6] a = {2,2,5,3,2,4}, int64 i0 = {0}, int64 i2 = {2}, int64[2,2] two = {1,0,0,1}, int64[2] b = {2,-1}"),
        ("v = Reshape (x, a)\n q = Gather <axis=3> (v, i0)\n k = Gather <axis=3> (v, i2)\n"
         "t = Transpose <perm=[0,1,3,4,2]> (k)\n u = Transpose <perm=[0,1,3,2,4]> (q)\n m = MatMul (u, t)\n"
         "w = Gather <axis=1> (v, two)\n c = Reshape (w, b)\n d = Reshape (m, b)\n y = Concat <axis=1> (c, d)"), 17),
    "matmul of rank 6": (
        {"x": (2, 2, 3, 4, 5), "z": (3, 5, 4)}, "int64[1] u = {1}, int64[2] b = {2,-1}",
        "v = Unsqueeze (x, u)\n m = MatMul (v, z)\n y = Reshape (m, b)", 17),
    "normalized": (
        {"x": ("n", 6, 6, 4)},
        "int64[6] a = {0,2,3,3,2,4}, float[4] g = {1,2,3,4}, float[4] h = {0,1,0,1}, int64[3] b = {0,6,24}",
        "v = Reshape (x, a)\n l = LayerNormalization <axis=-1> (v, g, h)\n y = Reshape (l, b)", 17),
    "a constant of rank 6, where, cast": (
        {"x": (2, 3, 4)}, f"float[1,1,2,1,3,4] k = {{{NUMBERS}}}, int64[2] u = {{0,3}}, int64[2] b = {{2,-1}}",
        ("v = Unsqueeze (x, u)\n c = Unsqueeze (v, zero)\n s = Add (c, k)\n g = Greater (s, k)\n w = Where (g, s, k)\n"
         "i = Cast <to=1> (g)\n q = Mul (w, i)\n y = Reshape (q, b)"), 17),
    "shape, squeeze, tile, argmax": (
        {"x": (2, 3, 4)}, "int64[3] u = {0,2,4}, int64[6] r = {1,2,1,1,1,3}, int64[1] q = {0}, int64[2] b = {2,-1}",
        ("v = Unsqueeze (x, u)\n t = Tile (v, r)\n s = Squeeze (t, q)\n n = ReduceSum <keepdims=0> (t)\n"
         "h = Shape (t)\n f = Cast <to=1> (h)\n d = ReduceProd <keepdims=0> (f)\n g = ArgMax <axis=5> (t)\n"
         "o = Cast <to=1> (g)\n e = Add (t, o)\n k = Add (e, d)\n p = Add (k, n)\n y = Reshape (p, b)"), 17),
    "padded": (
        {"x": ("n", 4, 6)},
        "int64[6] a = {0,2,2,3,2,1}, int64[12] p = {0,1,0,0,2,0,0,0,0,0,1,1}, int64[2] b = {0,-1}, float v = {0.5}",
        "w = Reshape (x, a)\n q = Pad (w, p, v)\n y = Reshape (q, b)", 17),
    "quantized": (
        {"x": ("n", 4, 6)},
        ("int64[6] a = {0,2,2,3,2,1}, int64[2] b = {0,-1}, float s = {0.05}, int8 z = {3}, float[3] ss = "
         "{0.02,0.05,0.04}, uint8[3] zz = {128,120,130}"),
        ("w = Reshape (x, a)\n q = QuantizeLinear (w, s, z)\n d = DequantizeLinear (q, s, z)\n"
         "t = Transpose <perm=[0,3,1,4,2,5]> (d)\n r = QuantizeLinear <axis=1> (t, ss, zz)\n"
         "e = DequantizeLinear <axis=1> (r, ss, zz)\n y = Reshape (e, b)"), 17),
}  # fmt: skip


def model_of(inputs, constants, body, opset):
    named = ", ".join(f"float[{','.join(str(s) for s in shape)}] {name}" for name, shape in inputs.items())
    named = named.replace("4h", "h").replace("4w", "w")
    text = (
        f'<ir_version: 9, opset_import: ["" : {opset}]>\n'
        f"g ({named}) => (float y) <{constants}, int64[1] zero = {{0}}> {{ {body} }}"
    )
    parsed = onnx.parser.parse_model(text)
    parsed.graph.output[0].type.tensor_type.ClearField("shape")
    return parsed


@pytest.mark.parametrize("name", CASES)
def test_a_tensor_of_many_dimensions_is_rewritten_and_right(agrees, name):
    inputs, constants, body, opset = CASES[name]
    model = model_of(inputs, constants, body, opset)
    symbols = {s for shape in inputs.values() for s in shape if isinstance(s, str)}
    dims = {s.strip("4"): [4, 16] if s.startswith("4") else [1, 4] for s in symbols}
    for count in (1, 3) if symbols else (1,):
        sizes = {s: 4 * count if s.startswith("4") else count for s in symbols}
        feeds = {
            key: RANDOM.normal(size=[sizes.get(s, s) for s in shape]).astype(np.float32)
            for key, shape in inputs.items()
        }
        agrees(model, feeds, dims=dims)


@given(
    permutation=strategies.integers(2, 8).flatmap(lambda rank: strategies.permutations(range(rank))),
    sizes=strategies.lists(strategies.integers(2, 3), min_size=8, max_size=8),
)
@settings(max_examples=300, deadline=None)
def test_any_permutation_is_made_of_transposes_of_five_blocks(permutation, sizes):
    shape = sizes[: len(permutation)]
    array = np.arange(np.prod(shape)).reshape(shape)
    steps = transposition(tuple(permutation))
    made = array
    for step in steps:
        assert len(step.blocks) <= 5
        made = made.reshape([np.prod([shape[axis] for axis in block]) for block in step.blocks])
        made = made.transpose(step.order)
    np.testing.assert_array_equal(made.reshape(-1), array.transpose(permutation).reshape(-1))
    assert len(steps) <= 3
    assert bool(steps) == (list(permutation) != sorted(permutation))


def test_reversing_nine_axes_takes_three_steps():
    steps = transposition(tuple(reversed(range(9))))
    assert len(steps) == 3


@given(rank=strategies.integers(6, 7), seed=strategies.integers(0, 10_000))
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_permutation_and_broadcast_is_exact_in_a_package(agrees, rank, seed):
    random = np.random.default_rng(seed)
    shape = [int(size) for size in random.integers(1, 4, rank)]
    order = random.permutation(rank)
    other = [int(size) if random.random() < 0.5 else 1 for size in np.array(shape)[order]]
    lists = {"a": shape, "o": other, "b": [1, -1]}
    constants = ", ".join(f"int64[{len(v)}] {k} = {{{','.join(map(str, v))}}}" for k, v in lists.items())
    body = (
        f"v = Reshape (x, a)\n t = Transpose <perm=[{','.join(map(str, order))}]> (v)\n"
        "w = Reshape (z, o)\n s = Sub (t, w)\n m = ReduceMax <axes=[1,3,5]> (s)\n d = Mul (s, m)\n y = Reshape (d, b)"
    )
    inputs = {"x": (int(np.prod(shape)),), "z": (int(np.prod(other)),)}
    feeds = {name: random.normal(size=size).astype(np.float32) for name, size in inputs.items()}
    agrees(model_of(inputs, constants, body, 17), feeds, tolerance=1e-6)


def test_what_is_not_rewritten_is_refused_by_name(build, check, save):
    model = save(
        """<ir_version: 9, opset_import: ["" : 17]> g (float[4,16] x) => (float[2,1] y)
        <int64[6] a = {2,2,2,2,2,2}, int64[1] k = {1}, int64[2] b = {2,-1}> {
            [six] v = Reshape (x, a)
            [top] t, i = TopK (v, k)
            [back] y = Reshape (t, b)
        }"""
    )
    result, package = build(model)
    (refused,) = [f for f in result["findings"] if f["severity"] == "error"]
    assert refused["node"] == "top"
    assert "rank 6" in refused["message"]
    assert "TopK" in refused["message"]
    assert not package.exists()
    rows = {row["node"]: row["verdict"] for row in check(model)["nodes"]}
    assert rows["top"] == "unsupported"


def test_an_output_of_rank_six_is_refused_by_name(build, save):
    model = save(
        """<ir_version: 9, opset_import: ["" : 17]> g (float[4,16] x) => (float[2,2,2,2,2,2] y)
        <int64[6] a = {2,2,2,2,2,2}> { [six] y = Reshape (x, a) }"""
    )
    result, _ = build(model)
    (refused,) = [f for f in result["findings"] if f["severity"] == "error"]
    assert (refused["code"], refused["tensor"]) == ("DK529", "y")
    assert "at most 5" in refused["message"]


def test_window_partition_of_the_case_catalogue(shared, build, evaluate):
    model = shared / "cases" / "rank6_window.onnx"
    result, package = build(model)
    assert [f for f in result["findings"] if f["severity"] == "error"] == []
    with np.load(shared / "cases" / "rank6_window.in0.npz") as feeds:
        made = evaluate(package, dict(feeds))
    with np.load(shared / "cases" / "rank6_window.out0.npz") as expected:
        for name, array in expected.items():
            np.testing.assert_array_equal(made[name], array)


def test_many_dimensions_inside_a_branch_and_around_it(agrees):
    model = """<ir_version: 9, opset_import: ["" : 17]>
    g (float[n,8,8,3] x, bool c) => (float[m,4,4,3] y) <int64[6] a = {-1,2,4,2,4,3}, int64[4] b = {-1,4,4,3}> {
        v = Reshape (x, a)
        [choose] y = If (c) <
            then_branch = t () => (float[m,4,4,3] p) {
                s = Transpose <perm=[0,1,3,2,4,5]> (v)
                p = Reshape (s, b)
            },
            else_branch = e () => (float[m,4,4,3] q) {
                u = Transpose <perm=[0,3,1,2,4,5]> (v)
                w = Neg (u)
                q = Reshape (w, b)
            }>
    }"""
    for chosen in (True, False):
        feeds = {"x": RANDOM.normal(size=(2, 8, 8, 3)).astype(np.float32), "c": np.array(chosen)}
        agrees(onnx.parser.parse_model(model), feeds, dims={"n": [1, 3]}, tolerance=1e-6)
