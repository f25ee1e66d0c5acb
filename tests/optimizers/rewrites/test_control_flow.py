"""Branches and loops that are known before the run, compared with onnxruntime's own control flow."""

from __future__ import annotations

import pytest

from deploykit.optimizers.rewrites.control_flow import UnrollControlFlow


@pytest.mark.parametrize("condition", [0, 1])
def test_branch_of_a_constant_condition(condition, unchanged_values):
    ops = unchanged_values(
        UnrollControlFlow(),
        f"""<ir_version: 8, opset_import: ["": 17]>
        agraph (float[N, 2] x) => (float[N, 2] y, float[N, 2] z) <bool c = {{{condition}}}> {{
            a, z = If (c) <
                then_branch = t () => (float[N, 2] p, float[N, 2] q)
                    <float[2] w = {{1, 2}}> {{ h = Add (x, w) p = Relu (h) q = Identity (x) }},
                else_branch = e () => (float[N, 2] p2, float[N, 2] q2)
                    {{ h = Neg (x) p2 = Sigmoid (h) q2 = Mul (h, h) }}
            >
            y = Abs (a)
        }}""",
        {"N": 2},
    )
    assert "If" not in ops


LOOP = """<ir_version: 8, opset_import: ["": {opset}]>
agraph (float[N, 2] x{more}) => (float[N, 2] y, float[{turns}, N, 2] s)
<int64 m = {{{turns}}}, bool c = {{1}}, float one = {{1}}> {{
    y, s = Loop (m, {condition}, x) <
        body = b (int64 i, bool k, float[N, 2] v) => (bool k2, float[N, 2] w, float[N, 2] t) {{
            f = Cast <to = 1> (i)
            g = Add (f, one)
            w = Mul (v, g)
            t = Sub (w, x)
            k2 = {goes_on}
        }}
    >
}}"""


@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize("condition", ["", "c"])
@pytest.mark.parametrize("goes_on", ["Identity (k)", "Identity (c)"])
def test_loop_of_known_length(opset, condition, goes_on, unchanged_values):
    text = LOOP.format(opset=opset, more="", turns=4, condition=condition, goes_on=goes_on)
    ops = unchanged_values(UnrollControlFlow(), text, {"N": 2}, {"N": 1})
    assert ops.count("Sub") == 4


@pytest.mark.parametrize(
    ("more", "turns", "condition", "goes_on"),
    [
        (", bool d", 4, "d", "Identity (k)"),
        ("", 4, "c", "Not (k)"),
        ("", 400, "c", "Identity (k)"),
        ("", 0, "c", "Identity (k)"),
    ],
)
def test_loops_that_end_otherwise_or_are_long_are_declined(more, turns, condition, goes_on, never_applies):
    never_applies(
        UnrollControlFlow(), LOOP.format(opset=13, more=more, turns=turns, condition=condition, goes_on=goes_on)
    )


def test_loop_in_a_loop_and_a_branch_inside(unchanged_values):
    ops = unchanged_values(
        UnrollControlFlow(),
        """<ir_version: 8, opset_import: ["": 17]>
        agraph (float[2] x, bool dynamic) => (float[2] y) <int64 m = {3}, int64 n = {2}, float half = {0.5}> {
            y = Loop (m, , x) <
                body = b (int64 i, bool k, float[2] v) => (bool k2, float[2] w) {
                    k2 = Identity (k)
                    u = Loop (n, , v) <
                        body = c (int64 j, bool l, float[2] p) => (bool l2, float[2] q) {
                            l2 = Identity (l)
                            r = Mul (p, half)
                            q = Add (r, x)
                        }
                    >
                    w = If (dynamic) <
                        then_branch = t () => (float[2] a) { a = Neg (u) },
                        else_branch = e () => (float[2] a2) { a2 = Exp (u) }
                    >
                }
            >
        }""",
    )
    assert ops.count("If") == 3


@pytest.mark.parametrize("more", ["", ", scan_input_directions = [1]", ", scan_output_directions = [1]",
                                  ", scan_input_axes = [1]", ", scan_output_axes = [1]"])  # fmt: skip
def test_scan_of_known_length(more, unchanged_values):
    shape = "3, N" if "output_axes" not in more else "N, 3"
    given = "3, N" if "input_axes" not in more else "N, 3"
    ops = unchanged_values(
        UnrollControlFlow(),
        f"""<ir_version: 8, opset_import: ["": 17]>
        agraph (float[N] s, float[{given}] x) => (float[N] y, float[{shape}] z) {{
            y, z = Scan <num_scan_inputs = 1{more},
                body = b (float[N] v, float[N] e) => (float[N] w, float[N] o) {{ w = Add (v, e) o = Mul (w, e) }}
            > (s, x)
        }}""",
        {"N": 2},
        {"N": 4},
    )
    assert ops.count("Mul") == 3
