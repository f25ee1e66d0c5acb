"""Normalizations written out, compared with onnxruntime's own kernels."""

from __future__ import annotations

import pytest

from deploykit.optimizers.rewrites.normalizations import DecomposeNormalizations


def model(opset, inputs, body, output="float[N, 4, 6] y"):
    return f"""<ir_version: 8, opset_import: ["": {opset}]>
    agraph ({inputs}) => ({output}) {{ {body} }}"""


LAYER = [
    "y = LayerNormalization (x, s)",
    "y = LayerNormalization <axis = 2, epsilon = 0.1> (x, s, b)",
    "y = LayerNormalization <axis = -1> (x, s, b)",
]


@pytest.mark.parametrize("body", LAYER)
@pytest.mark.parametrize("opset", [17, 18, 21])
def test_layer_normalization(opset, body, unchanged_values):
    text = model(opset, "float[N, 4, 6] x, float[6] s, float[6] b", body)
    ops = unchanged_values(DecomposeNormalizations(), text, {"N": 2}, {"N": 1})
    assert "LayerNormalization" not in ops


def test_layer_normalization_over_several_axes_gives_mean_and_deviation(unchanged_values):
    body = "y, m, d = LayerNormalization <axis = 1> (x, s, b)"
    outputs = "float[N, 4, 6] y, float[N, 1, 1] m, float[N, 1, 1] d"
    text = model(17, "float[N, 4, 6] x, float[4, 6] s, float[4, 6] b", body, outputs)
    unchanged_values(DecomposeNormalizations(), text, {"N": 3})


def test_half_precision_computes_in_the_stash_type(unchanged_values):
    text = model(
        18, "float16[N, 4, 6] x, float16[6] s", "y = LayerNormalization <epsilon = 0.001> (x, s)", "float16[N, 4, 6] y"
    )
    ops = unchanged_values(DecomposeNormalizations(), text, {"N": 2}, tolerance=2e-3)
    assert ops.count("Cast") == 2


@pytest.mark.parametrize("axis", [-1, 1, 2])
def test_rms_normalization(axis, unchanged_values):
    scale = {-1: "float[6]", 1: "float[4, 6]", 2: "float[6]"}[axis]
    text = model(23, f"float[N, 4, 6] x, {scale} s", f"y = RMSNormalization <axis = {axis}> (x, s)")
    unchanged_values(DecomposeNormalizations(), text, {"N": 2})


@pytest.mark.parametrize("opset", [11, 18, 22])
@pytest.mark.parametrize("spatial", ["W", "W, 5", "3, W, H"])
def test_instance_normalization(opset, spatial, unchanged_values):
    text = model(
        opset,
        f"float[N, 4, {spatial}] x, float[4] s, float[4] b",
        "y = InstanceNormalization (x, s, b)",
        f"float[N, 4, {spatial}] y",
    )
    unchanged_values(DecomposeNormalizations(), text, {"N": 2, "W": 7, "H": 3}, {"N": 1, "W": 4, "H": 5})


@pytest.mark.parametrize(("opset", "channels"), [(18, 2), (21, 6)])
@pytest.mark.parametrize("shape", ["2, 6, 5, 4", "N, 6, 5, 4", "N, 6, H, 4", "N, 6, W"])
def test_group_normalization(opset, channels, shape, unchanged_values):
    text = model(
        opset,
        f"float[{shape}] x, float[{channels}] s, float[{channels}] b",
        "y = GroupNormalization <num_groups = 2> (x, s, b)",
        f"float[{shape}] y",
    )
    unchanged_values(DecomposeNormalizations(), text, {"N": 3, "H": 5, "W": 7})


@pytest.mark.parametrize("opset", [11, 18, 22])
@pytest.mark.parametrize(("p", "axis"), [(1, -1), (2, 1), (2, 0)])
def test_lp_normalization(opset, p, axis, unchanged_values):
    body = f"z = Relu (x) y = LpNormalization <p = {p}, axis = {axis}> (z)"
    unchanged_values(DecomposeNormalizations(), model(opset, "float[N, 4, 6] x", body), {"N": 1}, {"N": 2})


def test_unknown_types_and_ranks_are_declined(never_applies):
    never_applies(
        DecomposeNormalizations(),
        """<ir_version: 8, opset_import: ["": 18, "own": 1]>
        agraph (float[4] s, float[4] b) => (float[] y) {
            x = own.Unknown (s)
            a = InstanceNormalization (x, s, b)
            y = LayerNormalization (x, s)
        }""",
    )
