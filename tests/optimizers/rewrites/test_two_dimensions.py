"""Operators over one spatial dimension as images, compared with onnxruntime's own kernels."""

from __future__ import annotations

import numpy as np
import pytest

from deploykit.optimizers.rewrites.two_dimensions import TwoDimensions


def model(call, x="float[N, 4, W] x", more="", opset=18, out="N, A, B", constants=""):
    return f"""<ir_version: 8, opset_import: ["": {opset}]>
    agraph ({x}{more}) => (float[{out}] y) {f"<{constants}>" if constants else ""} {{ y = {call} }}"""


@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize(
    ("call", "more"),
    [
        ("Conv <kernel_shape = [3], pads = [1, 2], strides = [2]> (x, w, b)", ", float[6, 4, 3] w, float[6] b"),
        ("Conv <group = 2, dilations = [2]> (x, w)", ", float[6, 2, 3] w"),
        ('Conv <auto_pad = "SAME_UPPER", strides = [2]> (x, w)', ", float[6, 4, 3] w"),
        ("ConvTranspose <strides = [2], pads = [1, 0], output_padding = [1]> (x, w)", ", float[4, 6, 3] w"),
        ("MaxPool <kernel_shape = [3], strides = [2], pads = [1, 1]> (x)", ""),
        ("AveragePool <kernel_shape = [3], ceil_mode = 1, strides = [2]> (x)", ""),
        ("AveragePool <kernel_shape = [2], pads = [1, 0], count_include_pad = 1> (x)", ""),
        ("LpPool <kernel_shape = [2], p = 3> (x)", ""),
        ("GlobalAveragePool (x)", ""),
        ("GlobalMaxPool (x)", ""),
        ("BatchNormalization (x, s, s, s, v)", ", float[4] s, float[4] v"),
    ],
)  # fmt: skip
def test_line_as_image(call, more, opset, unchanged_values):
    feeds = {"x": np.random.default_rng(0).normal(size=(2, 4, 9)).astype(np.float32)}
    for name, shape in {"w": None, "b": 6, "s": 4, "v": 4}.items():
        if f" {name}" in more:
            sizes = shape or [int(size) for size in more.split("]")[0].split("[")[1].split(",")]
            feeds[name] = np.abs(np.random.default_rng(1).normal(size=sizes)).astype(np.float32)
    unchanged_values(TwoDimensions(), model(call, more=more, opset=opset), feeds=feeds, tolerance=1e-4)


def test_constant_weights_stay_constants(unchanged_values):
    text = model("Conv (x, w)", constants="float[1, 4, 1] w = {1, 2, 3, 4}")
    assert unchanged_values(TwoDimensions(), text, {"N": 2, "W": 5}) == ["Unsqueeze", "Conv", "Squeeze"]


def test_batch_normalization_of_vectors(unchanged_values):
    text = model("BatchNormalization (x, s, s, s, v)", "float[N, 4] x", ", float[4] s, float[4] v", out="N, 4")
    feeds = {"x": np.ones((2, 4), np.float32), "s": np.float32([1, 2, 3, 4]), "v": np.float32([1, 2, 3, 4])}
    unchanged_values(TwoDimensions(), text, feeds=feeds)


@pytest.mark.parametrize("opset", [11, 13, 19])
@pytest.mark.parametrize(
    ("arguments", "constants"),
    [("x, {}, s", "float[3] s = {1, 1, 2.5}"), ("x, {}, {}, z", "int64[3] z = {2, 4, 11}")],
)
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resize(mode, arguments, constants, opset, unchanged_values):
    roi = "none" if opset < 13 else ""
    constants += ", float[0] none = {}" if opset < 13 else ""
    text = model(f'Resize <mode = "{mode}"> ({arguments.replace("{}", roi)})', opset=opset, constants=constants)
    unchanged_values(TwoDimensions(), text, {"N": 2, "W": 5})


def test_images_and_indices_stay(never_applies):
    never_applies(TwoDimensions(), model("Conv (x, w)", "float[N, 4, H, W] x", ", float[6, 4, 1, 1] w"))
    text = """<ir_version: 8, opset_import: ["": 18]>
    agraph (float[N, 4, 8] x) => (float[N, 4, 7] y, int64[N, 4, 7] i) { y, i = MaxPool <kernel_shape = [2]> (x) }"""
    never_applies(TwoDimensions(), text)
