"""Fourier transforms by matrices, compared with onnxruntime's kernels; results known before the run."""

from __future__ import annotations

import numpy as np
import pytest

from deploykit.optimizers.rewrites.constant_results import ConstantResults
from deploykit.optimizers.rewrites.spectra import DecomposeSpectra


def model(call, x="float[N, 12, 1] x", opset=20, constants="", out="A, B, C"):
    return f"""<ir_version: 8, opset_import: ["": {opset}]>
    agraph ({x}) => (float[{out}] y) {f"<{constants}>" if constants else ""} {{ y = {call} }}"""


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize("attributes", ["", "onesided = 1", "inverse = 1"])
@pytest.mark.parametrize("components", [1, 2])
@pytest.mark.parametrize("length", [None, 8, 16])
def test_transform(length, components, attributes, opset, unchanged_values, never_applies):
    constants = [f"int64 n = {{{length}}}"] if length else []
    first = "n" if length else ""
    if opset >= 20:
        constants.append("int64 a = {1}")
        call = f"DFT <{attributes}> (x, {first}, a)" if attributes else f"DFT (x, {first}, a)"
    else:
        call = f"DFT <axis = 1{', ' + attributes if attributes else ''}> (x{', n' if length else ''})"
    text = model(call, f"float[N, 12, {components}] x", opset, ", ".join(constants))
    if components == 2 and attributes == "onesided = 1":
        never_applies(DecomposeSpectra(), text)
        return
    unchanged_values(DecomposeSpectra(), text, {"N": 2}, {"N": 1}, tolerance=1e-4)


def test_transform_along_another_axis(unchanged_values):
    text = model("DFT (x, , a)", "float[N, 6, H, 2] x", constants="int64 a = {1}", out="A, B, C, D")
    unchanged_values(DecomposeSpectra(), text, {"N": 2, "H": 3}, tolerance=1e-4)


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("signal", ["float[N, L, 1] x", "float[N, 40, 1] x"])
@pytest.mark.parametrize("arguments", ["x, s, w", "x, s, w, n", "x, s, , n"])
def test_short_time_transform(arguments, signal, onesided, unchanged_values):
    window = ", ".join(str(value) for value in np.hanning(8).astype(np.float32))
    constants = f"int64 s = {{3}}, float[8] w = {{{window}}}, int64 n = {{8}}"
    text = model(f"STFT <onesided = {onesided}> ({arguments})", signal, 17, constants, "A, B, C, D")
    unchanged_values(DecomposeSpectra(), text, {"N": 2, "L": 40}, {"N": 1, "L": 19}, tolerance=1e-4)


def test_unknown_sizes_are_declined(never_applies):
    never_applies(DecomposeSpectra(), model("DFT (x, , a)", "float[N, 6, 1] x", constants="int64 a = {0}"))


@pytest.mark.parametrize(
    ("call", "out", "constants"),
    [
        ("ConstantOfShape <value = float[1] {2.5}> (s)", "2, 3", "int64[2] s = {2, 3}"),
        ("Range (a, b, d)", "3", "float a = {1}, float b = {4}, float d = {1}"),
        ("HannWindow (n)", "6", "int64 n = {6}"),
        ("EyeLike <k = 1> (w)", "2, 3", "float[2, 3] w = {1, 2, 3, 4, 5, 6}"),
        ("Transpose (w)", "3, 2", "float[2, 3] w = {1, 2, 3, 4, 5, 6}"),
        ("Expand (w, s)", "2, 3", "float[1, 3] w = {1, 2, 3}, int64[2] s = {2, 3}"),
    ],
)
def test_known_result(call, out, constants, unchanged_values):
    text = model(call.replace("y =", ""), "float x", 18, constants, out)
    text = text.replace("y = ", "u = ").replace(" }", " y = Add (u, x) }")
    assert unchanged_values(ConstantResults(), text) == ["Add"]


def test_random_nodes_large_results_and_inputs_are_not_constants(never_applies):
    text = """<ir_version: 8, opset_import: ["": 18]>
    agraph (float[N] x) => (float[A, B] y, float[N] z, float[C, D] w)
    <int64[2] s = {1000, 1000}, float[2, 2] c = {1, 2, 3, 4}> {
        y = ConstantOfShape (s)
        z = Neg (x)
        w = RandomNormalLike (c)
    }"""
    never_applies(ConstantResults(), text)
