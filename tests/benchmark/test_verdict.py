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
    assert verdict(rows, unit="", max_drop=0.1) == "a fp16: 2.0x a fp32, -0.1"
    assert verdict([row("a fp32", 2, 0.5), row("a fp16", 1, 0.495)], unit="") == "a fp16: 2.0x a fp32, -0.005"


def test_an_artifact_that_loses_too_much_is_not_recommended():
    rows = [row("a fp32", 4, 99.0), row("a int8", 1, 90.0), row("a fp16", 2, 98.9)]
    assert verdict(rows) == "a fp16: 2.0x a fp32, -0.1 points; not a int8: it loses 9.0 points"
    assert verdict(rows[:2]).startswith("a fp32 is the fastest here, or as fast as any; not a int8: it loses 9.0")
    assert verdict(rows, max_drop=10).startswith("a int8: 4.0x a fp32, -9.0 points")
    errors = [row("a fp32", 4, 0.1), row("a int8", 1, 0.05)]
    assert verdict(errors, "", higher_is_better=False).startswith("a int8: 4.0x a fp32")


def test_simulations_failed_rows_and_broken_budgets_are_not_recommended():
    slow = row("a fp32", 4)
    said = {
        "is simulated, and a simulation has no speed": verdict([slow, row("b fp16", 1, execution="simulated")]),
        "failed its gate": verdict([slow, row("b fp16", 1, status="failed")]),
        "breaks a budget": verdict([slow, row("b fp16", 1)], excluded=["b fp16"]),
    }
    for reason, text in said.items():
        assert text == f"a fp32 is the fastest here, or as fast as any; not b fp16: it {reason}"
    assert verdict([slow], excluded=["a fp32"]).endswith("; it breaks a budget")
    both = verdict([slow, row("b fp16", 5)], excluded=["a fp32"])
    assert both.startswith("nothing is recommended: a fp32 breaks a budget")


def test_a_difference_within_noise_is_called_that():
    slow = row("a fp32", 1.2, blocks_ms=[1.0, 1.6, 0.9, 1.2, 1.5, 0.8])
    fast = row("b fp32", 1.1, blocks_ms=[1.1, 1.0, 1.3, 1.1, 0.9, 1.2])
    text = verdict([slow, fast])
    assert text.startswith("b fp32 and a fp32 differ within noise (x0.")
    paired = row("b fp32", 1.0, blocks_ms=[block / 1.2 for block in slow["blocks_ms"]])
    assert verdict([slow, paired]) == "b fp32: 1.2x a fp32"


def test_a_drop_beyond_its_budget_is_a_failure():
    rows = [row("a fp32", 4, 99.0), row("a int8", 1, 98.4), row("b fp32", 2, None)]
    assert Budgets(max_drop=1.0).check(rows[:2]) == []
    found = Budgets(max_drop=0.5).check(rows)
    assert [(f.code, f.severity) for _, f in found] == [("DK442", "error"), ("DK445", "warning")]
    assert found[0][1].message == "a int8 loses 0.6 points of accuracy, and 0.5 are allowed (--max-drop)"
    assert found[0][0] is rows[1]


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
    ((_, finding),) = Budgets(**limits).check([row("a fp32", 2)])
    assert (finding.code, finding.severity, finding.message) == ("DK442", "error", said)


def test_kept_budgets_say_nothing():
    assert Budgets(4.0, 500, 5.0, 100).check([row("a fp32", 2)]) == []
    assert Budgets().check([row("a fp32", 2)]) == []


def test_an_unmeasured_row_keeps_its_size_budget_and_warns_of_the_others():
    found = Budgets(max_p99_ms=9, max_size_mb=1).check([row("coreml fp16", None)])
    assert [(f.code, f.severity) for _, f in found] == [("DK445", "warning"), ("DK442", "error")]
