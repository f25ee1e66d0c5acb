"""What is said about rows, and what budgets refuse."""

from __future__ import annotations

import pytest

from deploykit.benchmark import Budgets, verdict


def row(label, p50, accuracy=None, **more):
    target, precision = label.split()
    return {
        "label": label,
        "target": target,
        "precision": precision,
        "p50_ms": p50,
        "p99_ms": p50 and 2 * p50,
        "throughput_per_s": p50 and 1000 / p50,
        "size_mb": 5.0,
        "rss_mb": {"peak": p50 and 100.0},
        "accuracy": accuracy,
        **more,
    }


def test_the_fastest_against_the_baseline_with_its_accuracy():
    rows = [row("onnxruntime fp32", 4.1, 99.3), row("openvino int8", 1.0, 99.1)]
    assert verdict(rows) == "openvino int8: 4.1x onnxruntime fp32, -0.2 points"


def test_int8_that_does_not_pay_is_said():
    rows = [row("onnxruntime fp32", 0.97), row("onnxruntime int8", 1.0)]
    assert verdict(rows) == "INT8 is not faster here (x0.97): keep FP32"


def test_each_target_is_judged_by_its_own_fp32():
    rows = [row("onnxruntime fp32", 4), row("onnxruntime int8", 4.4), row("openvino fp32", 2), row("openvino int8", 1)]
    assert (
        verdict(rows)
        == "openvino int8: 4.0x onnxruntime fp32; INT8 is not faster here on onnxruntime (x0.91): keep FP32"
    )


def test_the_baseline_is_the_first_fp32_row_or_the_first():
    assert verdict([row("a int8", 1), row("a fp32", 2)]) == "a int8: 2.0x a fp32"
    assert verdict([row("a fp16", 2), row("b int8", 1)]) == "b int8: 2.0x a fp16"
    assert verdict([row("a fp32", 1), row("b fp32", 2)]) == "a fp32 is the fastest here, or as fast as any"


def test_other_units_are_not_points():
    rows = [row("a fp32", 2, 0.5), row("a fp16", 1, 0.4)]
    assert verdict(rows, unit="") == "a fp16: 2.0x a fp32, -0.1"


def test_what_was_not_measured_is_named():
    assert verdict([row("coreml fp16", None)]) == "nothing was measured: no artifact runs on this machine"
    text = verdict([row("a fp32", 2), row("coreml fp16", None)])
    assert text.startswith("a fp32: p50 2 ms, p99 4 ms, 500 per s")
    assert text.endswith("; not measured here: coreml fp16")


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"max_p99_ms": 1.0}, "a fp32: p99 latency 4 ms is above the maximum of 1 ms (--max-p99-ms)"),
        (
            {"min_throughput": 1e4},
            "a fp32: throughput 500 per s is below the minimum of 10000 per s (--min-throughput)",
        ),
        ({"max_size_mb": 4.5}, "a fp32: size 5 MB is above the maximum of 4.5 MB (--max-size-mb)"),
        ({"max_rss_mb": 99}, "a fp32: peak memory 100 MB is above the maximum of 99 MB (--max-rss-mb)"),
    ],
)
def test_a_broken_budget_names_number_limit_and_option(limits, said):
    (finding,) = Budgets(**limits).check([row("a fp32", 2)])
    assert (finding.code, finding.severity, finding.message) == ("DK442", "error", said)


def test_kept_budgets_say_nothing():
    assert Budgets(4.0, 500, 5.0, 100).check([row("a fp32", 2)]) == []
    assert Budgets().check([row("a fp32", 2)]) == []


def test_an_unmeasured_row_keeps_its_size_budget_and_warns_of_the_others():
    found = Budgets(max_p99_ms=9, max_size_mb=1).check([row("coreml fp16", None)])
    assert [(f.code, f.severity) for f in found] == [("DK445", "warning"), ("DK442", "error")]
