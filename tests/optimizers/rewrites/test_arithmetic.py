"""Short formulas, compared with onnxruntime's own kernels."""

from __future__ import annotations

import numpy as np
import pytest

from deploykit.optimizers.rewrites.arithmetic import DecomposeArithmetic


def model(opset, body, inputs="float[N, 4] x", outputs="float[N, 4] y", constants=""):
    return f"""<ir_version: 8, opset_import: ["": {opset}]>
    agraph ({inputs}) => ({outputs}) {f"<{constants}>" if constants else ""} {{ {body} }}"""


FORMULAS = {
    "Sum": "z = Neg (x) y = Sum (x, z, x)",
    "Mean": "z = Neg (x) y = Mean (x, z, x)",
    "Min": "z = Neg (x) w = Abs (z) y = Min (x, z, w)",
    "Max": "z = Neg (x) w = Abs (z) y = Max (x, z, w)",
    "Softplus": "y = Softplus (x)",
    "Sinh": "y = Sinh (x)",
    "Cosh": "y = Cosh (x)",
    "Tan": "y = Tan (x)",
    "Asinh": "y = Asinh (x)",
    "Acosh": "z = Cosh (x) y = Acosh (z)",
    "Atanh": "z = Tanh (x) y = Atanh (z)",
    "Reciprocal": "y = Reciprocal (x)",
    "Hardmax": "y = Hardmax <axis = 1> (x)",
}


@pytest.mark.parametrize("opset", [11, 13, 18, 22])
@pytest.mark.parametrize("op", FORMULAS)
def test_formula(op, opset, unchanged_values):
    ops = unchanged_values(DecomposeArithmetic(), model(opset, FORMULAS[op]), {"N": 3}, {"N": 1}, ops=[op])
    assert op not in ops or op in ("Min", "Max")


def test_mean_of_two_and_sum_of_two(unchanged_values):
    body = "z = Neg (x) a = Mean (x, z) b = Sum (a, x) y = Sum (b, b)"
    ops = unchanged_values(DecomposeArithmetic(), model(13, body), {"N": 2})
    assert not {"Mean", "Sum"} & set(ops)


def test_softplus_does_not_overflow(unchanged_values):
    feeds = {"x": np.float32([[-200, -1, 0, 1], [50, 88, 100, 1000]])}
    unchanged_values(DecomposeArithmetic(), model(13, FORMULAS["Softplus"]), feeds=feeds)


@pytest.mark.parametrize("opset", [18, 22])
def test_mish(opset, unchanged_values):
    unchanged_values(DecomposeArithmetic(), model(opset, "y = Mish (x)"), {"N": 5})


@pytest.mark.parametrize("opset", [11, 16])
def test_prelu(opset, unchanged_values):
    unchanged_values(DecomposeArithmetic(), model(opset, "y = PRelu (x, s)", "float[N, 4] x, float[4] s"), {"N": 5})


@pytest.mark.parametrize("bias", ["", ", c"])
@pytest.mark.parametrize("attributes", ["", "<alpha = 0.5>", "<transA = 1, alpha = 2.0>", "<transB = 1, beta = 0.25>"])
def test_gemm(attributes, bias, unchanged_values):
    a = "float[3, N] a" if "transA" in attributes else "float[N, 3] a"
    b = "float[4, 3] b" if "transB" in attributes else "float[3, 4] b"
    text = model(13, f"y = Gemm {attributes} (a, b{bias})", f"{a}, {b}, float[4] c")
    assert "Gemm" not in unchanged_values(DecomposeArithmetic(), text, {"N": 2}, {"N": 1})


@pytest.mark.parametrize("arguments", ["x, low", "x, , high", "x, low, high"])
@pytest.mark.parametrize("opset", [11, 13])
def test_clip_with_bounds_that_are_computed(opset, arguments, unchanged_values):
    text = model(opset, f"y = Clip ({arguments})", "float[N, 4] x, float low, float high")
    feeds = {"x": np.float32([[-2, -1, 0, 1]]), "low": np.float32(-0.5), "high": np.float32(0.25)}
    unchanged_values(DecomposeArithmetic(), text, feeds=feeds)
    # min above max: the maximum wins
    unchanged_values(DecomposeArithmetic(), text, feeds=feeds | {"low": np.float32(3)})


@pytest.mark.parametrize("body", ["y = IsNaN (x)", "y = IsInf (x)", "y = IsInf <detect_negative = 0> (x)"])
def test_tests_of_floats(body, unchanged_values):
    feeds = {"x": np.float32([[np.nan, np.inf, -np.inf, 1]])}
    unchanged_values(DecomposeArithmetic(), model(13, body, outputs="bool[N, 4] y"), feeds=feeds)


def test_xor_and_size(unchanged_values):
    text = model(13, "y = Xor (a, b) z = Size (a)", "bool[N, 4] a, bool[N, 4] b", "bool[N, 4] y, int64 z")
    assert not {"Xor", "Size"} & set(unchanged_values(DecomposeArithmetic(), text, {"N": 2}))


@pytest.mark.parametrize("attributes", ["", "<exclusive = 1>", "<reverse = 1>", "<exclusive = 1, reverse = 1>"])
@pytest.mark.parametrize("axis", [1, -1, -2])
def test_cumulative_sum(axis, attributes, unchanged_values):
    text = model(
        14,
        f"y = CumSum {attributes} (x, a)",
        "float[N, 4, 3] x",
        "float[N, 4, 3] y",
        constants=f"int64 a = {{{axis}}}",
    )
    unchanged_values(DecomposeArithmetic(), text, {"N": 2})


@pytest.mark.parametrize("fmod", [0, 1])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_modulo_of_integers(dtype, fmod, unchanged_values):
    text = model(13, f"y = Mod <fmod = {fmod}> (a, b)", f"{dtype}[N] a, {dtype}[N] b", f"{dtype}[N] y")
    pairs = np.array([(a, b) for a in range(-7, 8) for b in (-3, -2, -1, 1, 2, 3)], dtype)
    unchanged_values(DecomposeArithmetic(), text, feeds={"a": pairs[:, 0], "b": pairs[:, 1]})


@pytest.mark.parametrize("k", [-1, 0, 2])
@pytest.mark.parametrize("upper", [0, 1])
def test_trilu(upper, k, unchanged_values):
    text = model(
        14,
        f"y = Trilu <upper = {upper}> (x, k)",
        "float[N, 4, 3] x",
        "float[N, 4, 3] y",
        constants=f"int64 k = {{{k}}}",
    )
    unchanged_values(DecomposeArithmetic(), text, {"N": 2})


def test_what_depends_on_the_run_is_declined(never_applies):
    text = model(
        14,
        "a = CumSum (x, k) b = Trilu (a, k) y = Hardmax <axis = 0> (b) z = Sum (x, x) w = Max (x, x)",
        "float[N, M] x, int64 k",
        "float[N, M] y",
    )
    never_applies(_Without("Sum"), text)


class _Without(DecomposeArithmetic):
    """Sums of two are binary additions, which is tested above."""

    def __init__(self, op):
        self.builders = {key: build for key, build in DecomposeArithmetic.builders.items() if key[1] != op}
