"""Everything that bench may show: memory, a server, a baseline, a profile; letter by letter, and on the page."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from deploykit import render
from deploykit.render.bench import _modules
from deploykit.report import Report, note


def kernel(name: str, op: str, module: str, microseconds: float | None, share: float | None) -> dict:
    return {"name": name, "op": op, "precision": "fp32", "module": module, "microseconds": microseconds, "share": share}


def profile() -> dict:
    kernels = [
        kernel("/encoder/layers.0/MatMul", "MatMul", "encoder.layers.0 (Attention)", 600.0, 0.6),
        kernel("/encoder/layers.1/MatMul", "MatMul", "encoder.layers.1 (Attention)", 300.0, 0.3),
        *(kernel(f"reorder_{at}", "Reorder", "(not told)", 10.0, 0.01) for at in range(10)),
        kernel("loop", "Loop", "(not told)", None, None),
    ]
    by_module = [
        {"module": "encoder.layers.0 (Attention)", "kernels": 1, "microseconds": 600.0, "share": 0.6},
        {"module": "encoder.layers.1 (Attention)", "kernels": 1, "microseconds": 300.0, "share": 0.3},
        {"module": "(not told)", "kernels": 11, "microseconds": 100.0, "share": 0.1},
    ]
    return {
        "kernels": kernels,
        "by_op": [{"op": "MatMul", "kernels": 2, "microseconds": 900.0, "share": 0.9},
                  {"op": "Reorder", "kernels": 10, "microseconds": 100.0, "share": 0.1}],
        "by_precision": [{"precision": "fp32", "kernels": 13, "microseconds": 1000.0, "share": 1.0}],
        "by_module": by_module,
        "sum_ms": 1.0,
        "unprofiled_ms": 0.9,
        "ratio": 1.111,
        "calls": 5,
    }  # fmt: skip


def report() -> Report:
    memory = {"base": 40.2, "loaded": 61.0, "after": 80.4, "peak": 81.3}
    unknown = dict.fromkeys(memory)
    shared = {"execution": "real", "p95_ms": 1.75, "p99_ms": 2.0, "load_s": 0.1}
    rows = [
        {"artifact": "model.onnx", "label": "onnxruntime fp32", "runtime": "onnxruntime 1.32.0", "p50_ms": 1.5,
         "throughput_per_s": 640.25, "rss_mb": memory, "size_mb": 90.4, "accuracy": 98.6, "profile": profile(),
         **shared},
        {"artifact": "model.xml", "label": "openvino int8", "runtime": "openvino 2026.4.1 (CPU)", "p50_ms": 0.5,
         "throughput_per_s": 1900.0, "rss_mb": memory, "size_mb": 0.0225, "accuracy": 98.4, "profile": None, **shared},
        {"artifact": "http://localhost:8000", "label": "server model", "runtime": "deploykit 0.1.0", "p50_ms": 2.0,
         "throughput_per_s": 4000.0, "rss_mb": unknown, "size_mb": None, "accuracy": None, "model": "model",
         "clients": 8, "profile": None, **shared, "load_s": None},
    ]  # fmt: skip
    judged = [
        {"label": "onnxruntime fp32", "verdict": "reference", "measure": "latency", "ratio": 1.02, "relative_to": [],
         "interval": [0.99, 1.05], "before_ms": 1.47, "now_ms": [1.5, 1.49]},
        {"label": "openvino int8", "verdict": "slower", "measure": "processor time", "ratio": 1.52,
         "interval": [1.48, 1.55], "before_ms": 0.33, "now_ms": [0.5, 0.51], "relative_to": ["onnxruntime fp32"]},
        {"label": "server model", "verdict": "new"},
    ]  # fmt: skip
    metrics = {
        "rows": rows,
        "verdict": "openvino int8: 3.0x onnxruntime fp32, -0.2 points",
        "baseline": {
            "file": "baseline.json",
            "max_slowdown": 1.1,
            "confidence": 0.95,
            "runs": 2,
            "rows": judged,
        },
    }
    said = note("DK410", "server model: no time by operator: a server tells no profile", target="server")
    return Report("bench", findings=[said], metrics=metrics, seconds=6.5)


@pytest.mark.parametrize(("format", "suffix"), [("table", "txt"), ("markdown", "md")])
def test_all_of_it_letter_by_letter(golden, format: str, suffix: str) -> None:
    golden(f"reports/bench_all.{suffix}", render.render(report(), format))


def test_the_drawing_letter_by_letter(golden) -> None:
    page = render.render(report(), "html")
    drawing = page[page.index("<svg") : page.index("</svg>") + len("</svg>")] + "\n"
    ET.fromstring(drawing)
    golden("reports/bench_all.svg", drawing)


def test_modules_are_shown_at_the_deepest_level_that_has_few_enough() -> None:
    rows = [
        {"module": f"encoder.layers.{at} (Layer)", "kernels": 1, "microseconds": 1.0, "share": 0.05} for at in range(20)
    ]
    assert _modules(rows[:3])[0][0] == "encoder.layers.0 (Layer)"
    ((name, count, time, share),) = _modules(rows)
    assert (name, count, time, share) == ("encoder.layers", 20, 20.0, pytest.approx(1.0))
    flat = [{"module": f"m{at}", "kernels": 1, "microseconds": 20.0 - at, "share": 0.05} for at in range(20)]
    shown = _modules(flat)
    assert len(shown) == 13
    assert (shown[0][0], shown[-1][0], shown[-1][1]) == ("m0", "8 others", 8)
    assert sum(row[3] for row in shown) == pytest.approx(1.0)
