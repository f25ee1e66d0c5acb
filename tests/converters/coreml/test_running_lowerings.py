"""Lowerings whose sizes, bounds and places are computed while the model runs, each at several sizes of one package."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

RANDOM = np.random.default_rng(3)
FEEDS = {
    "float": lambda shape: RANDOM.normal(size=shape).astype(np.float32),
    "int64": lambda shape: RANDOM.integers(0, 2, shape),
    "bool": lambda shape: RANDOM.integers(0, 2, shape).astype(bool),
}
# name: (inputs {name: (type, sizes; n and m vary)}, outputs, constants, body)
CASES = {
    "slice_to_a_size": (
        {"x": ("float", "2,9"), "z": ("float", "n,m")},
        "float y",
        "int64[1] o = {1}, int64[1] a = {0}",
        "s = Shape <start=1,end=2> (z)\n y = Slice (x, a, s, o)",
    ),
    "slice_from_an_end": (
        {"x": ("float", "n,m"), "z": ("float", "n,3")},
        "float y",
        "int64[1] o = {1}, int64[1] w = {1}, int64[1] e = {-1}",
        ("s = Shape <end=1> (z)\n b = Sub (o, s)\n c = Sub (b, w)\n d = Sub (c, w)\ny = Slice (x, d, e, w)"),
    ),
    "slice_beyond": (
        {"x": ("float", "n,m")},
        "float y",
        "int64[1] o = {1}, int64[1] a = {0}, int64[1] k = {100}",
        "s = Shape <end=1> (x)\n b = Mul (s, k)\n y = Slice (x, a, b, o)",
    ),
    "slice_with_steps": (
        {"x": ("float", "n,m")},
        "float y",
        "int64[1] o = {1}, int64[1] a = {0}, int64[1] k = {2}",
        "s = Shape <start=1> (x)\n y = Slice (x, a, s, o, k)",
    ),
    "expand_bool": (
        {"x": ("bool", "1,m"), "z": ("float", "n,3")},
        "bool y",
        "int64[1] o = {1}",
        "s = Shape <end=1> (z)\n t = Concat <axis=0> (s, o)\n y = Expand (x, t)",
    ),
    "tile": (
        {"x": ("float", "2,m"), "z": ("float", "n,3")},
        "float y",
        "int64[1] o = {1}",
        "s = Shape <end=1> (z)\n t = Concat <axis=0> (s, o)\n y = Tile (x, t)",
    ),
    "pad": (
        {"x": ("float", "n,m"), "z": ("float", "2,n")},
        "float y",
        "int64[1] o = {1}, int64[1] w = {0}, float v={7}",
        "s = Shape <start=1> (z)\n t = Concat <axis=0> (w, s, o, w)\n y = Pad (x, t, v)",
    ),
    "pad_less_than_nothing": (
        {"x": ("float", "n,m")},
        "float y",
        "int64[1] o = {1}, int64[1] w = {0}",
        ("s = Shape <end=1> (x)\n t = Sub (w, o)\n u = Concat <axis=0> (w, t, s, w)\ny = Pad (x, u)"),
    ),
    "pad_bool": (
        {"x": ("bool", "n,m")},
        "bool y",
        "int64[1] o = {1}, int64[1] w = {0}",
        "s = Shape <end=1> (x)\n u = Concat <axis=0> (w, s, o, w)\n y = Pad (x, u)",
    ),
    "pad_integers": ({"x": ("int64", "n,m")}, "int64 y", "int64[4] u = {0,1,2,3}, int64 v = {9}", "y = Pad (x, u, v)"),
    "pad_bool_fixed": ({"x": ("bool", "n,m")}, "bool y", "int64[4] u = {0,1,2,3}, bool v = {1}", "y = Pad (x, u, v)"),
    "gather_bool": ({"x": ("bool", "n,m"), "i": ("int64", "3")}, "bool y", "", "y = Gather <axis=1> (x, i)"),
    "gather_nd_bool": ({"x": ("bool", "n,m"), "i": ("int64", "3,2")}, "bool y", "", "y = GatherND (x, i)"),
    "gather_elements": (
        {"x": ("float", "n,m,4"), "i": ("int64", "n,m,4")},
        "float y",
        "",
        "y = GatherElements <axis=2> (x, i)",
    ),
    "gather_elements_of_other_sizes": (
        {"x": ("float", "4,m,6"), "i": ("int64", "n,m,2")},
        "float y",
        "",
        "y = GatherElements <axis=1> (x, i)",
    ),
    "gather_elements_block": (
        {"x": ("float", "4,5,6"), "i": ("int64", "2,5,3")},
        "float y",
        "",
        "y = GatherElements <axis=1> (x, i)",
    ),
    "fill_with_bool": (
        {"x": ("float", "n,m")},
        "bool y",
        "",
        "s = Shape (x)\n y = ConstantOfShape <value = bool[1] {1}> (s)",
    ),
    "fill_a_scalar": (
        {"x": ("float", "n,m")},
        "float y",
        "int64[0] s = {}",
        "c = ConstantOfShape <value = float[1] {2.5}> (s)\n y = Add (x, c)",
    ),
    "resize_but_the_batch": (
        {"x": ("float", "n,3,4,6")},
        "float y",
        "int64[2] t = {7,9}",
        's = Shape <end=2> (x)\n u = Concat <axis=0> (s, t)\n y = Resize <mode="linear"> (x, , , u)',
    ),
    "resize_to_the_size_of_another": (
        {"x": ("float", "n,3,4,6"), "z": ("float", "2,m")},
        "float y",
        "int64[1] k = {3}",
        (
            "a = Shape <end=2> (x)\n b = Shape <start=1> (z)\n c = Mul (b, k)\n u = Concat <axis=0> (a, b, c)\n"
            'y = Resize <mode="linear"> (x, , , u)'
        ),
    ),
    "resize_with_corners": (
        {"x": ("float", "n,3,4,m"), "z": ("float", "2,m")},
        "float y",
        "int64[1] k = {3}",
        (
            "a = Shape <end=2> (x)\n b = Shape <start=1> (z)\n c = Mul (b, k)\n u = Concat <axis=0> (a, k, c)\n"
            'y = Resize <mode="linear", coordinate_transformation_mode="align_corners"> (x, , , u)'
        ),
    ),
    "affine_grid": (
        {"t": ("float", "n,2,3"), "x": ("float", "n,3,5,7")},
        "float y",
        "",
        "s = Shape (x)\n y = AffineGrid (t, s)",
    ),
    "affine_grid_of_any_plane": (
        {"t": ("float", "n,2,3"), "x": ("float", "n,3,5,m")},
        "float y",
        "",
        "s = Shape (x)\n y = AffineGrid <align_corners=1> (t, s)",
    ),
    "size_is_not_nothing": (
        {"x": ("float", "n,m")},
        "float y",
        "int64 w = {0}",
        (
            "s = Size (x)\n e = Equal (s, w)\n"
            "y = If (e) <then_branch = a () => (float[1] b) { b = Constant <value_floats=[1.0]> () },"
            " else_branch = c () => (float[n,m] d) { d = Neg (x) }>"
        ),
    ),
    "division_of_picked_integers": (
        {"i": ("int64", "n,m")},
        "int64 y",
        "int64 k = {2}, int64 w = {3}, int64 z = {0}",
        "a = Sub (i, w)\n b = Gather (a, z)\n y = Div (b, k)",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_with_sizes_that_are_computed(agrees, name):
    inputs, output, constants, body = CASES[name]
    declared = ", ".join(f"{kind}[{shape}] {key}" for key, (kind, shape) in inputs.items())
    model = f'<ir_version: 10, opset_import: ["" : 21]>\ng ({declared}) => ({output}) <{constants}> {{ {body} }}'
    parsed = onnx.parser.parse_model(model)
    parsed.graph.output[0].type.tensor_type.ClearField("shape")
    varying = {size for _, shape in inputs.values() for size in "nm" if size in shape}
    for sizes in ({"n": 2, "m": 5}, {"n": 3, "m": 4}):
        feeds = {
            key: FEEDS[kind]([sizes.get(size) or int(size) for size in shape.split(",")])
            for key, (kind, shape) in inputs.items()
        }
        agrees(parsed, feeds, dims={size: [2, 5] for size in varying})


@pytest.mark.parametrize("fixed", [True, False])
def test_the_integer_of_an_infinite_logarithm_may_be_thrown_away(agrees, fixed):
    """As T5 buckets distances: what log(0) becomes as an integer is not said, nor used."""
    given, constants = ("float[4] z", "float[4] x = {0, 1, 8, 20}") if fixed else ("float[4] x", "")
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 21]>\ng ({given}) => (int64[4] y) <{constants}'
        f"{', ' if constants else ''}float one = {{1}}, float four = {{4}}, int64 w = {{7}}> "
        "{ l = Log (x)\n m = Mul (l, four)\n c = Cast <to=7> (m)\n s = Less (x, one)\n y = Where (s, w, c)"
        "}"
    )
    agrees(model, {"z" if fixed else "x": np.array([0, 1, 8, 20], np.float32)})


SUPPRESSION = "y = NonMaxSuppression <center_point_box=1> (b, s, most, over, low)"


def test_suppression_over_any_batch_and_any_number_of_boxes(agrees):
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]>\ng (float[n,m,4] b, float[n,3,m] s) => (int64[k,3] y) '
        "<int64[1] most = {4}, float[1] over = {0.3}, float[1] low = {0.2}> { " + SUPPRESSION + " }"
    )
    for batch, count in ((1, 12), (3, 30)):
        boxes = RANDOM.uniform(1, 9, (batch, count, 4)).astype(np.float32)
        scores = RANDOM.uniform(size=(batch, 3, count)).astype(np.float32)
        agrees(model, {"b": boxes, "s": scores}, dims={"n": [1, 4], "m": [3, 40]})


def test_where_of_booleans(save, build, evaluate):
    """onnxruntime has none; the onnx package's own evaluator has."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]>\ng (bool[n,m] c, bool[n,m] x, bool[1,m] z) => (bool[n,m] y) '
        "{ y = Where (c, x, z) }"
    )
    feeds = {key: FEEDS["bool"](shape) for key, shape in {"c": (3, 5), "x": (3, 5), "z": (1, 5)}.items()}
    (expected,) = ReferenceEvaluator(model).run(None, feeds)
    _, package = build(save(model), dims={"n": [2, 4], "m": [2, 5]})
    made = evaluate(package, {key: array.astype(np.float32) for key, array in feeds.items()})
    np.testing.assert_array_equal(made["y"] != 0, expected)


def test_an_lstm_whose_weights_are_joined_from_parts(agrees):
    rows, steps = (", ".join(f"{value:.3f}" for value in RANDOM.normal(size=size)) for size in (24, 16))
    model = (
        '<ir_version: 10, opset_import: ["" : 21]>\ng (float[5,n,3] x) => (float[5,1,n,2] y) <float[8,3] w = '
        f"{{{rows}}}, float[1,8,2] r = {{{steps}}}, int64[1] z = {{0}}, int64[1] a = {{4}}, int64[1] b = {{8}}> "
        "{ c = Slice (w, a, b, z)\n d = Slice (w, z, a, z)\n e = Concat <axis=0> (c, d)\n"
        "f = Unsqueeze (e, z)\n y = LSTM <hidden_size=2> (x, f, r) }"
    )
    for batch in (1, 3):
        agrees(model, {"x": FEEDS["float"]((5, batch, 3))}, dims={"n": [1, 4]})
