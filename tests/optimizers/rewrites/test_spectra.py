"""Fourier transforms by matrices, compared with onnxruntime's kernels."""

from __future__ import annotations

import numpy as np
import pytest

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
