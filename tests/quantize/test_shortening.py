"""Nodes that become one before Q/DQ is inserted: constants in convolutions, Gemm from MatMul and Add, hard swish."""

import numpy as np
import pytest
from quantize_models import onnx_text, operators, quantized, run, sqnr_db

from deploykit import graph
from deploykit.quantize.affine import fold_affine
from deploykit.quantize.gemm import fuse_gemm
from deploykit.quantize.hard_swish import shorten_hard_swish
from deploykit.quantize.prepare import load_float
from deploykit.target import get_target

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def saved(model, path):
    graph.save(model, path)
    return path


CONV = """g (float[2,3,5,4] x) => (float[2,4,5,4] y) {
    [conv] c = Conv <kernel_shape=[3,3], pads=[1,1,1,1]> (x, w, b)
    [scale] m = FIRST
    [shift] y = SECOND
}"""
CHAINS = {
    "one number": ("Mul (c, s)", "Add (m, t)", (1,), (1,)),
    "the constant first": ("Mul (s, c)", "Add (t, m)", (), (1,)),
    "a number a channel": ("Div (c, s)", "Sub (m, t)", (4, 1, 1), (1, 4, 1, 1)),
}


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("bias", [True, False])
def test_constants_behind_a_convolution_fold_into_it(tmp_path, chain, bias):
    first, second, *shapes = CHAINS[chain]
    text = CONV.replace("FIRST", first).replace("SECOND", second).replace(", b)", ", b)" if bias else ")")
    weights = {"w": normal(4, 3, 3, 3), "s": normal(*shapes[0]) + 3, "t": normal(*shapes[1])}
    path = onnx_text(text, tmp_path / "m.onnx", **weights, **({"b": normal(4)} if bias else {}))
    model, _ = load_float(path)
    assert fold_affine(model) == 2
    assert [(node.op_type, node.name) for node in model.graph] == [("Conv", "conv")]
    feeds = {"x": normal(2, 3, 5, 4)}
    wanted = run(path, feeds, optimize=False)["y"]
    found = run(saved(model, tmp_path / "folded.onnx"), feeds, optimize=False)["y"]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("second", "shape", "outputs"),
    [
        ("Add (m, t)", (4,), "float[2,4,5,4] y"),  # along the width, which is as long as there are channels
        ("Add (m, t)", (5, 1), "float[2,4,5,4] y"),
        ("Sub (t, m)", (1,), "float[2,4,5,4] y"),
        ("Mul (m, c)", (1,), "float[2,4,5,4] y"),
        ("Add (m, t)", (1,), "float[2,4,5,4] y, float[2,4,5,4] m"),
    ],
)
def test_what_does_not_fit_the_channels_or_is_read_elsewhere_stays(tmp_path, second, shape, outputs):
    text = CONV.replace("FIRST", "Mul (c, s)").replace("SECOND", second).replace("float[2,4,5,4] y", outputs)
    weights = {"w": normal(4, 3, 3, 3), "b": normal(4), "s": normal(1), "t": normal(*shape)}
    path = onnx_text(text, tmp_path / "m.onnx", **weights)
    model, _ = load_float(path)
    assert fold_affine(model) == (0 if second == "Mul (m, c)" else 1)
    feeds = {"x": normal(2, 3, 5, 4)}
    wanted, found = (run(p, feeds, optimize=False) for p in (path, saved(model, tmp_path / "folded.onnx")))
    assert found.keys() == wanted.keys()
    np.testing.assert_allclose(found["y"], wanted["y"], rtol=1e-5, atol=1e-5)


def test_an_excluded_node_keeps_its_neighbours(tmp_path):
    text = CONV.replace("FIRST", "Mul (c, s)").replace("SECOND", "Add (m, t)")
    path = onnx_text(text, tmp_path / "m.onnx", w=normal(4, 3, 3, 3), b=normal(4), s=normal(1), t=normal(1))
    model, _ = load_float(path)
    assert fold_affine(model, ["shift"]) == 1
    assert operators(graph_proto(model)) == ["Conv", "Add"]


def graph_proto(model):
    import onnx_ir as ir

    return ir.to_proto(model).graph


MATRICES = """g (float[n,8] x) => (float[n,6] y) {
    [product] m = MatMul (x, w)
    [sum] y = Add (ORDER)
}"""


@pytest.mark.parametrize("order", ["m, b", "b, m"])
@pytest.mark.parametrize("shape", [(6,), (1, 6)])
def test_a_product_with_a_bias_is_one_integer_kernel_with_all_operands_in_integers(tmp_path, order, shape):
    """What ONNX Runtime makes of MatMul and Add itself keeps the weight in float and dequantizes it in every call."""
    import onnx
    import onnxruntime as ort

    path = onnx_text(MATRICES.replace("ORDER", order), tmp_path / "m.onnx", w=normal(8, 6), b=normal(*shape))
    model, _ = load_float(path)
    assert fuse_gemm(model) == 1
    (gemm,) = model.graph
    assert (gemm.op_type, gemm.name, gemm.outputs[0].name) == ("Gemm", "product", "y")
    fused = saved(model, tmp_path / "fused.onnx")
    feeds = [{"x": normal(32, 8)}]
    wanted = run(path, feeds[0], optimize=False)["y"]
    np.testing.assert_allclose(run(fused, feeds[0], optimize=False)["y"], wanted, rtol=1e-5, atol=1e-5)
    made = quantized(fused, feeds, get_target("onnxruntime").scheme)
    assert sqnr_db(wanted, run(made.path, feeds[0], optimize=False)["y"]) > 30
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.log_severity_level = 3
    ort.InferenceSession(str(made.path), options, providers=["CPUExecutionProvider"])
    assert operators(onnx.load(tmp_path / "optimised.onnx").graph) == ["QuantizeLinear", "QGemm"]


@pytest.mark.parametrize(
    ("rows", "shape"), [("n,5", (6,)), ("n", (1,)), ("n", (4, 6))], ids=["rank 3", "one number", "a row of its own"]
)
def test_other_sums_stay_sums(tmp_path, rows, shape):
    size = rows.replace("n", "4")
    text = MATRICES.replace("ORDER", "m, b").replace("float[n,8]", f"float[{size},8]").replace("n,6", f"{size},6")
    model, _ = load_float(onnx_text(text, tmp_path / "m.onnx", w=normal(8, 6), b=normal(*shape)))
    assert fuse_gemm(model) == 0


SWISH = """g (float[2,3,4] x) => (float[2,3,4] y) {
    a = Add (three, x)
    c = Clip (a, zero, six)
    MIDDLE
}"""
MIDDLES = {
    "division last": "p = Mul (x, c) y = Div (p, six)",
    "division first": "d = Div (c, six) y = Mul (d, x)",
    "a sixth": "p = Mul (x, c) y = Mul (sixth, p)",
}


def numbers(**others):
    given = {"three": 3.0, "zero": 0.0, "six": 6.0, "sixth": 1 / 6, **others}
    return {name: np.array(number, np.float32) for name, number in given.items()}


@pytest.mark.parametrize("middle", MIDDLES)
def test_hard_swish_is_two_nodes(tmp_path, middle):
    path = onnx_text(SWISH.replace("MIDDLE", MIDDLES[middle]), tmp_path / "m.onnx", **numbers())
    model, _ = load_float(path)
    assert shorten_hard_swish(model) == 1
    assert [node.op_type for node in model.graph] == ["HardSigmoid", "Mul"]
    feeds = {"x": 5 * normal(2, 3, 4)}
    wanted, found = (run(p, feeds, optimize=False)["y"] for p in (path, saved(model, tmp_path / "short.onnx")))
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("others", [{"three": 2.0}, {"zero": -1.0}, {"six": 5.0}])
def test_other_numbers_are_no_hard_swish(tmp_path, others):
    text = SWISH.replace("MIDDLE", MIDDLES["division last"])
    assert shorten_hard_swish(load_float(onnx_text(text, tmp_path / "m.onnx", **numbers(**others)))[0]) == 0


def test_what_is_read_in_between_stays(tmp_path):
    text = SWISH.replace("MIDDLE", MIDDLES["division last"]).replace(" y)", " y, float[2,3,4] c)")
    assert shorten_hard_swish(load_float(onnx_text(text, tmp_path / "m.onnx", **numbers()))[0]) == 0
