"""Reductions and global pools, compared with onnxruntime's own kernels."""

from __future__ import annotations

import numpy as np
import pytest

from deploykit.optimizers.rewrites.reductions import DecomposeReductions

NORMS = ["ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"]


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize("op", NORMS)
def test_reduction(op, opset, keepdims, unchanged_values):
    axes, constants = ("", "<int64[2] a = {1, -1}>") if opset >= 18 else ("axes = [1, -1],", "")
    shape = "N, 1, 5, 1" if keepdims else "N, 5"
    text = f"""<ir_version: 8, opset_import: ["": {opset}]>
    agraph (float[N, 4, 5, 3] x) => (float[{shape}] y, float z) {constants} {{
        p = Abs (x)
        y = {op} <{axes} keepdims = {keepdims}> (p{", a" if opset >= 18 else ""})
        z = {op} <keepdims = 0> (p)
    }}"""
    ops = unchanged_values(DecomposeReductions(), text, {"N": 2}, {"N": 1}, tolerance=1e-4)
    assert op not in ops


def test_log_of_sums_of_infinities(unchanged_values):
    text = """<ir_version: 8, opset_import: ["": 18]>
    agraph (float[3, 2] x) => (float[3] y) <int64[1] a = {1}> { y = ReduceLogSumExp <keepdims = 0> (x, a) }"""
    feeds = {"x": np.float32([[-np.inf, -np.inf], [np.inf, 1], [200, 200]])}
    unchanged_values(DecomposeReductions(), text, feeds=feeds)


@pytest.mark.parametrize("op", ["ReduceL1", "ReduceSumSquare"])
def test_integers_are_summed_as_integers(op, unchanged_values):
    text = f"""<ir_version: 8, opset_import: ["": 18]>
    agraph (int32[N, 4] x) => (int32[N, 1] y) <int64[1] a = {{1}}> {{ y = {op} (x, a) }}"""
    unchanged_values(DecomposeReductions(), text, {"N": 2})


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool", "GlobalLpPool <p = 3>"])
@pytest.mark.parametrize("opset", [11, 18, 20])
def test_global_pool(op, opset, unchanged_values):
    text = f"""<ir_version: 8, opset_import: ["": {opset}]>
    agraph (float[N, 4, H, 5] x) => (float[N, 4, 1, 1] y) {{ y = {op} (x) }}"""
    unchanged_values(DecomposeReductions(), text, {"N": 2, "H": 3}, {"N": 1, "H": 1})


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("more", ["", ", pads = [1, 0, 1, 1], strides = [2, 1]", ', auto_pad = "VALID"'])
def test_lp_pool(p, more, unchanged_values):
    text = f"""<ir_version: 8, opset_import: ["": 18]>
    agraph (float[N, 2, 7, 6] x) => (float[N, C, H, W] y) {{ y = LpPool <p = {p}, kernel_shape = [3, 2]{more}> (x) }}"""
    text = text.replace("[N, C, H, W]", "[N, 2, " + ("4, 6" if "pads" in more else "5, 5") + "]")
    unchanged_values(DecomposeReductions(), text, {"N": 2})


def test_windows_that_are_cut_are_declined(never_applies):
    text = """<ir_version: 8, opset_import: ["": 18]>
    agraph (float[N, 2, 7, 6] x) => (float[N, 2, H, W] y) {
        y = LpPool <kernel_shape = [3, 2], strides = [2, 2], ceil_mode = 1> (x)
    }"""
    never_applies(DecomposeReductions(), text)
