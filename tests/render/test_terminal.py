import io
import re

import pytest
from rich.console import Console

from deploykit.render.terminal import compose
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
