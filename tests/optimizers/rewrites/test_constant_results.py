"""Results that are known before the run."""

from __future__ import annotations

import pytest

from deploykit.optimizers.rewrites.constant_results import ConstantResults


def model(call, x="float[N, 12, 1] x", opset=20, constants="", out="A, B, C"):
    return f"""<ir_version: 8, opset_import: ["": {opset}]>
    agraph ({x}) => (float[{out}] y) {f"<{constants}>" if constants else ""} {{ y = {call} }}"""


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
