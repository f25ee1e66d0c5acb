"""Lowerings that are more than an operator of MIL, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from deploykit.reference import Reference

RANDOM = np.random.default_rng(0)
X4 = RANDOM.normal(size=(2, 3, 5, 7)).astype(np.float32)
X3 = RANDOM.normal(size=(2, 3, 6)).astype(np.float32)


def text(inputs, outputs, constants, body, opset=20):
    return f'<ir_version: 9, opset_import: ["" : {opset}]>\n g ({inputs}) => ({outputs}) <{constants}> {{ {body} }}'


RESIZES = [
    ("nearest", "half_pixel", "round_prefer_floor", (8, 10), ""),
    ("nearest", "asymmetric", "ceil", (3, 9), ""),
    ("nearest", "align_corners", "floor", (9, 4), ""),
    ("linear", "half_pixel", "round_prefer_floor", (8, 5), ""),
    ("linear", "asymmetric", "round_prefer_floor", (9, 5), ""),
    ("linear", "align_corners", "round_prefer_floor", (9, 4), ""),
    ("linear", "pytorch_half_pixel", "round_prefer_floor", (1, 9), ""),
    ("cubic", "half_pixel", "round_prefer_floor", (9, 4), ""),
    ("cubic", "align_corners", "round_prefer_floor", (9, 4), ", cubic_coeff_a=-0.5"),
    ("cubic", "half_pixel", "round_prefer_floor", (9, 4), ", exclude_outside=1"),
]


@pytest.mark.parametrize(("mode", "coordinates", "rounding", "size", "more"), RESIZES)
def test_resize_in_every_mode(agrees, mode, coordinates, rounding, size, more):
    attributes = f'mode="{mode}", coordinate_transformation_mode="{coordinates}", nearest_mode="{rounding}"{more}'
    h, w = size
    agrees(
        text("float[2,3,5,7] x", f"float[2,3,{h},{w}] y", f"int64[4] s = {{2,3,{h},{w}}}",
             f"y = Resize <{attributes}> (x, , , s)"),
        {"x": X4},
    )  # fmt: skip


def test_resize_of_another_axis_and_rank(agrees):
    agrees(
        text("float[2,3,6] x", "float[2,5,6] y", "int64[3] s = {2,5,6}", 'y = Resize <mode="linear"> (x, , , s)'),
        {"x": X3},
    )
    agrees(
        text("float[2,3,6] x", "float[2,3,9] y", "float[1] s = {1.5}",
             'y = Resize <mode="linear", axes=[2]> (x, , s)'),
        {"x": X3},
    )  # fmt: skip


def test_resize_in_core_mls_own_operators_where_they_fit(agrees):
    operators = agrees(
        text("float[2,3,5,7] x", "float[2,3,8,9] y", "int64[4] s = {2,3,8,9}", 'y = Resize <mode="linear"> (x, , , s)'),
        {"x": X4},
    )
    assert "resize_bilinear" in operators


def test_a_tie_that_rounding_decides_is_refused(build, save):
    model = text("float[1,1,4,6] x", "float[1,1,4,4] y", "float[4] s = {1,1,1,0.7}", "y = Resize (x, , s)")
    result, _ = build(save(model))
    assert [f["code"] for f in result["findings"] if f["severity"] == "error"] in ([], ["DK526"])


def recurrent_model(op, gates, attributes, *, state=True, steps=4, directions=1):
    """A layer with H = 5 over [steps, 2, 3], all optional inputs given."""
    shapes = {"w": (directions, gates * 5, 3), "r": (directions, gates * 5, 5), "b": (directions, 2 * gates * 5)}
    fixed = [numpy_helper.from_array((RANDOM.normal(size=s) / 2).astype(np.float32), n) for n, s in shapes.items()]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [steps, 2, 3])]
    names = ["x", "w", "r", "b", ""]
    if state:
        names += ["h", "c"] if op == "LSTM" else ["h"]
        inputs += [helper.make_tensor_value_info(n, TensorProto.FLOAT, [directions, 2, 5]) for n in names[5:]]
    outputs = ["y", "y_h", "y_c"] if op == "LSTM" else ["y", "y_h"]
    return helper.make_model(
        helper.make_graph(
            [helper.make_node(op, names, outputs, name="layer", hidden_size=5, **attributes)],
            "g",
            inputs,
            [
                helper.make_tensor_value_info(
                    n, TensorProto.FLOAT, [steps, directions, 2, 5] if n == "y" else [directions, 2, 5]
                )
                for n in outputs
            ],
            fixed,
        ),
        opset_imports=[helper.make_opsetid("", 20)],
        ir_version=9,
    )


@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_recurrent_layers(agrees, op, gates, direction):
    count = 2 if direction == "bidirectional" else 1
    model = recurrent_model(op, gates, {"direction": direction}, directions=count)
    feeds = {value.name: RANDOM.normal(size=[d.dim_value for d in value.type.tensor_type.shape.dim]).astype(np.float32)
             for value in model.graph.input}  # fmt: skip
    agrees(model, feeds)


def test_gru_before_reset_and_other_activations(agrees):
    feeds = {"x": RANDOM.normal(size=(4, 2, 3)).astype(np.float32)}
    agrees(recurrent_model("GRU", 3, {"linear_before_reset": 1}, state=False), feeds)
    agrees(recurrent_model("LSTM", 4, {"activations": ["Sigmoid", "Relu", "Tanh"]}, state=False), feeds)


FLOATS = [
    ("Asinh (x)", 1.0), ("Shrink <lambd=0.3, bias=0.1> (x)", 1.0), ("Hardmax <axis=1> (x)", 1.0),
    ("LpNormalization <axis=1, p=1> (x)", 1.0), ("LpNormalization <p=2> (x)", 1.0), ("Trilu (x)", 1.0),
]  # fmt: skip


@pytest.mark.parametrize(("body", "factor"), FLOATS)
def test_elementwise_and_along_an_axis(agrees, body, factor):
    agrees(text("float[2,3,6] x", "float[2,3,6] y", "", f"y = {body}"), {"x": X3 * np.float32(factor)})


def test_acosh_and_fmod(agrees):
    agrees(text("float[2,3,6] x", "float[2,3,6] y", "", "y = Acosh (x)"), {"x": np.abs(X3) + 1})
    agrees(text("float[2,3,6] x", "float[2,3,6] y", "float m = {-0.7}", "y = Mod <fmod=1> (x, m)"), {"x": X3})


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_the_last_of_equal_positions(agrees, op):
    agrees(
        text("float[2,3,6] x", "int64[2,6] y", "", f"y = {op} <axis=1, keepdims=0, select_last_index=1> (x)"),
        {"x": np.round(X3)},
    )


def test_pooling_with_gaps_and_by_powers(agrees):
    for body, shape in (
        ("MaxPool <kernel_shape=[2,2], dilations=[2,3], pads=[1,0,1,1]> (x)", "2,3,5,5"),
        ("AveragePool <kernel_shape=[2,2], dilations=[2,2], pads=[1,1,1,1]> (x)", "2,3,5,7"),
        ("AveragePool <kernel_shape=[2,2], dilations=[2,2], pads=[1,1,1,1], count_include_pad=1> (x)", "2,3,5,7"),
        ("LpPool <kernel_shape=[2,3], pads=[1,0,0,1]> (x)", "2,3,5,6"),
        ("LpPool <kernel_shape=[2,3], p=1> (x)", "2,3,4,5"),
    ):
        agrees(text("float[2,3,5,7] x", f"float[{shape}] y", "", f"y = {body}", opset=22), {"x": X4})


def test_writing_by_position(agrees):
    agrees(
        text("float[3,4] x, float[2,3] u", "float[3,4] y", "int64[2,3] i = {1,0,2,0,2,-2}",
             "y = ScatterElements <axis=0> (x, i, u)"),
        {"x": X3[0, :, :4], "u": X3[1, :2, :3]},
    )  # fmt: skip
    agrees(
        text("float[3,4] x, float[2,4] u", "float[3,4] y", "int64[2,4] i = {1,0,2,0,1,0,2,-1}",
             'y = ScatterElements <axis=1, reduction="add"> (x, i, u)', opset=18),
        {"x": X3[0, :, :4], "u": X3[1, :2, :4]},
    )  # fmt: skip
    agrees(
        text("float[3,4] x, float[2] u", "float[3,4] y", "int64[2,2] i = {0,1,-1,3}", "y = ScatterND (x, i, u)"),
        {"x": X3[0, :, :4], "u": X3[1, 0, :2]},
    )
    agrees(
        text("float[2,3,6] x", "float[2,2] y", "int64[2,2,2] i = {0,1,-1,5,2,2,1,0}",
             "y = GatherND <batch_dims=1> (x, i)"),
        {"x": X3},
    )  # fmt: skip
    agrees(text("float[2,3,6] x", "float[2,2,6] y", "bool[3] c = {1,0,1}", "y = Compress <axis=1> (x, c)"), {"x": X3})


def test_a_position_that_is_written_twice_is_refused(build, save):
    model = text("float[3,4] x, float[2] u", "float[3,4] y", "int64[2,2] i = {0,1,0,1}", "y = ScatterND (x, i, u)")
    result, _ = build(save(model))
    assert [(f["code"], f["op"]) for f in result["findings"] if f["severity"] == "error"] == [("DK526", "ScatterND")]


def test_one_hot_counts_negative_positions_and_leaves_out_others(agrees):
    agrees(
        text("int64[2,3] i", "float[2,4,3] y", "int64 d = {4}, float[2] v = {-1, 2}",
             "y = OneHot <axis=1> (i, d, v)"),
        {"i": np.array([[0, 3, -1], [-4, 7, 2]])},
    )  # fmt: skip


def test_not_a_number_and_infinity(agrees):
    x = np.array([[0.0, np.nan, np.inf, -np.inf]], np.float32)
    agrees(text("float[1,4] x", "bool[1,4] y", "", "y = IsNaN (x)"), {"x": x})
    agrees(text("float[1,4] x", "bool[1,4] y", "", "y = IsInf <detect_negative=0> (x)"), {"x": x})


def test_padding_of_integers_and_by_wrapping(agrees):
    x = np.arange(24).reshape(2, 3, 4)
    agrees(
        text("int64[2,3,4] x", "int64[2,5,7] y", "int64[6] p = {0,1,2,0,1,1}", 'y = Pad <mode="reflect"> (x, p)'),
        {"x": x},
    )
    agrees(
        text(
            "float[2,3,6] x", "float[4,5,8] y", "int64[6] p = {1,1,1,1,1,1}", 'y = Pad <mode="wrap"> (x, p)', opset=19
        ),
        {"x": X3},
    )


@pytest.mark.parametrize("padding", ["zeros", "border"])
@pytest.mark.parametrize("corners", [0, 1])
def test_samples_of_an_image(agrees, padding, corners):
    grid = RANDOM.uniform(-1.3, 1.3, (2, 4, 6, 2)).astype(np.float32)
    agrees(
        text("float[2,3,5,7] x, float[2,4,6,2] g", "float[2,3,4,6] y", "",
             f'y = GridSample <padding_mode="{padding}", align_corners={corners}> (x, g)'),
        {"x": X4, "g": grid},
    )  # fmt: skip


def test_branches_and_scans(agrees):
    agrees(
        text("float[2,3] x, bool c", "float[2,3] y", "",
             "y = If (c) <then_branch = t () => (float[2,3] a) { a = Relu (x) }, "
             "else_branch = e () => (float[2,3] b) { b = Neg (x) }>").replace("bool c", "bool[1] c"),
        {"x": X3[0, :2, :3], "c": np.array([True])},
    )  # fmt: skip
    agrees(
        text("float[4,3] x", "float[3] s, float[4,3] y", "float[3] z = {0,0,0}",
             "s, y = Scan <num_scan_inputs=1, body = b (float[3] a, float[3] v) => (float[3] n, float[3] o) "
             "{ n = Add (a, v)\n o = Mul (n, v) }> (z, x)"),
        {"x": X3.reshape(-1)[:12].reshape(4, 3)},
    )  # fmt: skip


def test_operators_by_their_function_bodies(agrees):
    q, k = (RANDOM.normal(size=(2, 3, n, 8)).astype(np.float32) for n in (4, 6))
    model = text("float[2,3,4,8] q, float[2,3,6,8] k, float[2,3,6,8] v", "float[2,3,4,8] y", "",
                 "y = Attention <is_causal=1> (q, k, v)", opset=23)  # fmt: skip
    agrees(
        onnx.parser.parse_model(model.replace("ir_version: 9", "ir_version: 11")), {"q": q, "k": k, "v": k[::-1].copy()}
    )
    agrees(
        text("float[2,3,5,7] x", "float[2,3,5,7] y", "", "y = MeanVarianceNormalization <axes=[2,3]> (x)"), {"x": X4}
    )
    agrees(
        text("float[4,5] x, int64[4] t", "float l", "float[5] w = {1,2,0.5,1,3}",
             "l = SoftmaxCrossEntropyLoss <ignore_index=2> (x, t, w)"),
        {"x": X4.reshape(-1)[:20].reshape(4, 5), "t": np.array([0, 2, 4, 1])},
    )  # fmt: skip


def test_an_operator_inside_a_body_is_named_when_it_is_refused(build, save):
    model = text("int64[2,3,5,7] x, int64[3] s", "int64[2,3,5,7] y", "", "y = CenterCropPad (x, s)")
    result, _ = build(save(model.replace("int64[3] s", "int64[4] s")))
    (finding,) = [f for f in result["findings"] if f["severity"] == "error"]
    assert finding["op"] == "CenterCropPad"


EQUATIONS = [
    "bij,bjk->bik",
    "bhqd,bhkd->bhqk",
    "ij,jk,kl->il",
    "bij,bij->b",
    "ij->ji",
    "bij,ik->bkj",
    "i,j->ij",
    "ij,kj",
]


@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum(agrees, equation):
    sizes = dict(zip("bhijklqd", (2, 3, 4, 5, 6, 3, 4, 5), strict=True))
    terms, _, result = equation.partition("->")
    result = result or "ik"
    names = [f"x{n}" for n in range(len(terms.split(",")))]
    shapes = [[sizes[c] for c in term] for term in terms.split(",")]
    inputs = ", ".join(f"float[{','.join(map(str, s))}] {n}" for n, s in zip(names, shapes, strict=True))
    agrees(
        text(inputs, f"float[{','.join(str(sizes[c]) for c in result)}] y", "",
             f'y = Einsum <equation="{equation}"> ({", ".join(names)})'),
        {n: RANDOM.normal(size=s).astype(np.float32) for n, s in zip(names, shapes, strict=True)},
    )  # fmt: skip


@pytest.mark.parametrize("centred", [0, 1])
def test_suppression_of_boxes(agrees, centred):
    count = 40
    boxes = RANDOM.uniform(0, 1, (2, count, 4)).astype(np.float32)
    scores = np.round(RANDOM.uniform(0, 1, (2, 3, count)), 2).astype(np.float32)  # some are equal
    operators = agrees(
        text(f"float[2,{count},4] b, float[2,3,{count}] s", "int64[n,3] y",
             "int64 m = {7}, float i = {0.3}, float t = {0.2}",
             f"y = NonMaxSuppression <center_point_box={centred}> (b, s, m, i, t)"),
        {"b": boxes, "s": scores},
    )  # fmt: skip
    assert "while_loop" in operators


def test_positions_that_are_not_zero(agrees):
    agrees(text("float[2,3,6] x", "int64[3,n] y", "", "y = NonZero (x)"), {"x": np.round(X3)})


FUSED = [
    ("Gelu (x)", "", 5), ("BiasGelu (x, b)", "", 5), ("FastGelu (x, b)", "", 5), ("FastGelu (x)", "", 5),
    ("QuickGelu (x)", "", 5), ("FusedMatMul <transB=1, alpha=0.5> (x, z)", "", 3),
]  # fmt: skip


@pytest.mark.parametrize(("body", "_", "columns"), FUSED)
def test_fused_operators_of_onnxruntime(agrees, body, _, columns):
    b = X4[0, 0, :, 0].copy()
    values = ",".join(f"{value:.6f}" for value in b)
    model = f"""<ir_version: 9, opset_import: ["" : 20, "com.microsoft" : 1]>
    g (float[2,3,5] x, float[2,3,5] z) => (float[2,3,{columns}] y) <float[5] b = {{{values}}}>
    {{ y = com.microsoft.{body}\n u = Add (z, z) }}"""
    feeds = {"x": X3[:, :, :5].copy(), "z": X4[:, :, 0, :5].copy()}
    agrees(model, feeds)


@pytest.mark.parametrize(
    ("op", "more"), [("SkipLayerNormalization", "g, b, b"), ("SkipSimplifiedLayerNormalization", "g, b")]
)
def test_fused_normalizations_of_onnxruntime(agrees, op, more):
    model = f"""<ir_version: 9, opset_import: ["" : 20, "com.microsoft" : 1]>
    g (float[2,3,5] x, float[2,3,5] z) => (float[2,3,5] y, float[2,3,5] s)
    <float[5] g = {{1,2,0.5,-1,1}}, float[5] b = {{0.1,0.2,-0.1,0,0.3}}>
    {{ y, "", "", s = com.microsoft.{op} <epsilon = 0.01> (x, z, {more}) }}"""
    agrees(model, {"x": X3[:, :, :5].copy(), "z": X4[:, :, 0, :5].copy()})


def test_loops(agrees):
    agrees(
        text("float[3] x", "float[3] y, float[4,3] z", "int64 n = {4}, bool t = {1}",
             "y, z = Loop (n, t, x) <body = b (int64 i, bool c, float[3] v) => (bool d, float[3] w, float[3] o) "
             "{ d = Identity (c)\n k = Cast <to=1> (i)\n w = Add (v, k)\n o = Mul (w, v) }>"),
        {"x": X3[0, 0, :3].copy()},
    )  # fmt: skip
    operators = agrees(
        text("float[3] x, int64[1] m", "float[3] y", "int64[1] z = {0}, bool t = {1}, float five = {5}",
             "n = ReduceMax <keepdims=0> (m)\n"
             "y = Loop (n, t, x) <body = b (int64 i, bool c, float[3] v) => (bool d, float[3] w) "
             "{ w = Add (v, v)\n s = ReduceMax <keepdims=0> (w)\n d = Less (s, five) }>"),
        {"x": np.abs(X3[0, 0, :3]) / 10, "m": np.array([9])},
    )  # fmt: skip
    assert "while_loop" in operators


@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3)])
def test_recurrent_layers_over_a_length_that_varies(agrees, op, gates):
    attributes = {"direction": "bidirectional"}
    if op == "LSTM":
        attributes["activations"] = ["Sigmoid", "Relu", "Tanh"] * 2
    model = recurrent_model(op, gates, attributes, directions=2, state=False)
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = "steps"
    for steps in (1, 5):
        operators = agrees(model, {"x": RANDOM.normal(size=(steps, 2, 3)).astype(np.float32)}, dims={"steps": [1, 9]})
        assert operators["while_loop"] == 2


HALF = [
    "Hardmax <axis=1> (x)", "LpNormalization <axis=2> (x)", "Shrink <lambd=0.3, bias=0.1> (x)", "Trilu (x)",
    'Resize <mode="cubic"> (x, , , s)', "LpPool <kernel_shape=[2,3]> (x)", "Mish (x)", "HardSwish (x)", "Celu (x)",
    "AveragePool <kernel_shape=[2,2], dilations=[2,2]> (x)", 'Einsum <equation="abij,abkj->abik"> (x, x)',
    "LogSoftmax <axis=1> (x)", "ReduceLogSumExp <keepdims=1> (x)",
    "InstanceNormalization (x, g, g)", "LayerNormalization <axis=-3> (x, w)",
]  # fmt: skip


@pytest.mark.parametrize("body", HALF)
def test_half_precision(build, save, evaluate, body):
    """The graph in float16 against the same in float32: what rounding may cost, and no type that MIL refuses."""
    shapes = {"x": [2, 3, 5, 7], "g": [3], "w": [3, 5, 7]}
    names = [name for name in shapes if f"({name}" in body or f", {name}" in body]
    feeds = {name: RANDOM.normal(size=shapes[name]).astype(np.float16) for name in names}
    results = []
    for kind in ("float16", "float"):
        inputs = ", ".join(f"{kind}[{','.join(map(str, shapes[name]))}] {name}" for name in names)
        model = onnx.parser.parse_model(
            text(inputs, f"{kind}[a,b,c,d] y", "int64[4] s = {2,3,9,5}", f"y = {body}", opset=22)
        )
        if kind == "float":
            results.append(Reference(save(model)).predict({n: a.astype(np.float32) for n, a in feeds.items()})["y"])
            continue
        result, package = build(save(model))
        assert [f["message"] for f in result["findings"] if f["severity"] == "error"] == []
        results.append(evaluate(package, feeds)["y"])
    half, full = results
    assert half.dtype == np.float16
    np.testing.assert_allclose(half.astype(np.float32), full, rtol=1e-2, atol=2e-3 * float(np.abs(full).max()))
