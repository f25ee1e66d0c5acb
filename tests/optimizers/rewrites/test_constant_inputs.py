"""Inputs that depend on constants only are computed once; what draws, quantizes anew or grows is left alone."""

from __future__ import annotations

import numpy as np

from deploykit.optimizers.rewrites.constant_inputs import ConstantInputs

HEADER = '<ir_version: 8, opset_import: ["": 17]>\n'
WEIGHT = "float[2,3,1,1] w = {0.5, 1, 1.5, 2, 2.5, 3}"


def test_a_computed_weight_becomes_an_initializer(unchanged_values):
    text = f"""{HEADER} agraph (float[N,2,4,4] x) => (float[N,3,4,4] y) <{WEIGHT}, float[1] two = {{2}}> {{
        t = Transpose <perm = [1, 0, 2, 3]> (w)
        d = Mul (t, two)
        y = Conv (x, d)
    }}"""
    assert unchanged_values(ConstantInputs(), text, {"N": 1}, {"N": 3}, ops=["Conv"]) == ["Conv"]


def test_what_others_read_stays(unchanged_values):
    text = f"""{HEADER} agraph (float[N,2,4,4] x) => (float[N,3,4,4] y, float[3,2,1,1] s) <{WEIGHT}> {{
        a = Neg (w)
        t = Transpose <perm = [1, 0, 2, 3]> (a)
        s = Exp (t)
        u = Abs (t)
        y = Conv (x, u)
    }}"""
    assert unchanged_values(ConstantInputs(), text, {"N": 2}, ops=["Conv"]) == ["Neg", "Transpose", "Exp", "Conv"]


def test_axes_and_shapes_in_bodies(unchanged_values):
    text = f"""{HEADER} agraph (float[2,3] x, bool c) => (float[6] y) <int64[1] six = {{5}}, int64[1] one = {{1}}> {{
        y = If (c) <
            then_branch = t () => (float[6] a) {{ s = Add (six, one) a = Reshape (x, s) }},
            else_branch = e () => (float[6] b) {{ u = Add (six, one) n = Neg (x) b = Reshape (n, u) }}>
    }}"""
    ops = unchanged_values(ConstantInputs(), text, ops=["Reshape"])
    assert sorted(ops) == ["If", "Neg", "Reshape", "Reshape"]


def test_constants_in_every_form_are_read(unchanged_values):
    text = f"""{HEADER} agraph (float[2,3] x) => (float[6,1] y) {{
        a = Constant <value_ints = [5]> ()
        b = Constant <value = int64[1] {{1}}> ()
        s = Add (a, b)
        t = Concat <axis = 0> (s, b)
        y = Reshape (x, t)
    }}"""
    assert unchanged_values(ConstantInputs(), text, ops=["Reshape"])[-1] == "Reshape"


def test_inputs_and_random_values_are_no_constants(never_applies):
    never_applies(
        ConstantInputs(),
        f"""{HEADER} agraph (float[2,3] x, float[3,2] v) => (float[2,2] y, float[2,2] z) {{
            t = Neg (v)
            y = MatMul (x, t)
            r = RandomNormal <shape = [3, 2], seed = 1.0> ()
            z = MatMul (x, r)
        }}""",
    )


def test_what_would_make_the_file_grow_stays_computed(never_applies):
    text = f"""{HEADER} agraph (float[1000,100] x) => (float[1000,100] y)
        <int64[2] s = {{1000, 100}}, float[1] one = {{1}}> {{ e = Expand (one, s) y = Mul (x, e) }}"""
    never_applies(ConstantInputs(), text)


def test_a_default_that_a_caller_may_replace_is_no_constant(never_applies):
    text = f"""{HEADER} agraph (float[2] x, float[2] w) => (float[2] y) <float[2] w = {{1, 2}}> {{
        n = Neg (w) y = Mul (x, n) }}"""
    never_applies(ConstantInputs(), text)


def test_other_opsets_compute_by_their_own_rules(unchanged_values):
    text = """<ir_version: 8, opset_import: ["": 11]> agraph (float[2,3] x) => (float[2,3] y)
        <float[1,3,1] w = {1, 2, 3}> { s = Squeeze <axes = [0, 2]> (w) y = Mul (x, s) }"""
    feeds = {"x": np.float32([[1, 2, 3], [4, 5, 6]])}
    assert unchanged_values(ConstantInputs(), text, feeds=feeds, ops=["Mul"]) == ["Mul"]


def test_quantized_weights_stay_quantized(never_applies):
    text = f"""{HEADER} agraph (float[N,2,4,4] x) => (float[N,3,4,4] y)
        <int8[3,2,1,1] w = {{1, 2, 3, 4, 5, 6}}, float[1] s = {{0.5}}>
        {{ d = DequantizeLinear (w, s) y = Conv (x, d) }}"""
    never_applies(ConstantInputs(), text)


def test_sequences_are_no_constants(never_applies):
    text = f"""{HEADER} agraph (int64 i) => (float[2] y) <float[2] a = {{1, 2}}> {{
        s = SequenceConstruct (a, a) y = SequenceAt (s, i) }}"""
    never_applies(ConstantInputs(), text)
