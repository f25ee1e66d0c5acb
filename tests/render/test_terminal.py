import io
import re

import pytest
from rich.console import Console

from deploykit.render.terminal import compose, render
from deploykit.report import Report


@pytest.mark.parametrize("width", range(80, 125))
def test_no_width_cuts_a_header(width):
    row = {
        "target": "tensorrt-rtx",
        "precision": "int8-weights",
        "status": "passed",
        "execution": "none",
        "accuracy": 99.11,
        "accuracy_drop": 0.0,
        "int8_macs_share": 1.0,
        "size_bytes": 250_000,
        "p50_ms": 0.0226,
        "p99_ms": 20.4,
        "throughput_per_s": 11475.0,
    }
    console = Console(file=io.StringIO(), width=width)
    console.print(compose(Report("run", metrics={"rows": [row]}), width))
    header = next(line for line in console.file.getvalue().splitlines() if line.startswith("target"))
    known = {"target", "precision", "status", "executed", "accuracy", "drop", "int8 MACs", "SQNR dB", "MB", "per s"}
    assert set(re.split(r"\s{2,}", header.strip())) <= known | {"p50 ms", "p99 ms"}


def made(engine, nodes, size, **more):
    metrics = {
        "engine": engine,
        "nodes": {"before": 57, "after": nodes},
        "bytes": {"before": 140_130, "after": size},
        "candidates": [
            {"engine": "onnxsim", "nodes": 39, "bytes": 126_901},
            {"engine": "native", "nodes": 53, "bytes": 9},
        ],
        "parity": {"outputs": [], "samples": 0},
        **more,
    }
    return render(Report("simplify", metrics=metrics))


def test_simplify_shows_what_each_engine_made_and_which_is_kept():
    lines = made("onnxsim", 39, 126_901).splitlines()
    assert [line.split() for line in lines[2:5]] == [
        ["the", "original", "57", "140,130"],
        ["onnxsim", "39", "126,901", "kept"],
        ["native", "53", "9"],
    ]
    assert "140,130  kept" in made("none", 57, 140_130)
    assert re.search(r"onnxsim, fused +20 +1,000 +kept", made("onnxsim", 20, 1_000, fusions={"Attention": 2}))
