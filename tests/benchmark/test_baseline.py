"""What is decided about a baseline, on numbers that are made; and that its file is read with care."""

from __future__ import annotations

import json

import numpy as np
import pytest

from deploykit.benchmark import baseline as module
from deploykit.benchmark.baseline import RUNS, compare_runs, judge, read_baseline, require_comparable
from deploykit.benchmark.intervals import paired_ratio, ratio_of
from deploykit.errors import InvalidFileError, UsageError
from deploykit.report import SCHEMA
from deploykit.version import __version__

MACHINE = {"cpu": "A", "cpus": 2, "architecture": "x86_64", "system": "Linux"}


def row(label, median, *, noise=0.02, seed=0, sha256="old", blocks=10, **more):
    target, precision = label.split()[:2]
    times = median * np.exp(np.random.default_rng(seed).normal(0, noise, blocks))
    return {
        "label": label,
        "artifact": f"/somewhere/{target}.{precision}.onnx",
        "target": target,
        "precision": precision,
        "runtime": "engine 1",
        "sha256": sha256,
        "p50_ms": float(np.median(times)),
        "spread": 0.01,
        "waited_share": 0.0,
        "blocks_ms": times.tolist(),
        "cpu_ms": (times / 2).tolist(),
        **more,
    }


def saved(tmp_path, rows, **metrics):
    facts = {"machine": MACHINE, "threads": None, "batch": 1, "data_digest": "d", "rows": rows, **metrics}
    file = tmp_path / "baseline.json"
    document = {"schema": SCHEMA, "command": "bench", "deploykit": __version__, "metrics": facts}
    file.write_text(json.dumps(document), encoding="utf-8")
    return read_baseline(file)


def again(*runs):
    """Measures again: one set of rows after the other."""
    left = list(runs)
    return lambda: left.pop(0)


def compared(known, *runs, limit=1.1):
    result, findings = compare_runs(known, runs[0], again(*runs[1:]), limit)
    return result, [(finding.code, finding.severity) for finding in findings]


def test_an_interval_holds_the_ratio_and_narrows_with_less_noise():
    draws = np.random.default_rng(1)
    wide, narrow = (
        ratio_of([np.log(1.3) + draws.normal(0, noise, 10)], [draws.normal(0, noise, 10)]) for noise in (0.1, 0.01)
    )
    for found in (wide, narrow):
        assert found.low <= found.value <= found.high
    assert narrow.low <= 1.3 <= narrow.high
    assert narrow.high - narrow.low < (wide.high - wide.low) / 3
    assert ratio_of([np.zeros(4)], [np.zeros(4)]).as_dict() == {"ratio": 1.0, "interval": [1.0, 1.0]}


def test_intervals_hold_the_true_ratio_about_as_often_as_they_say():
    draws = np.random.default_rng(2)
    held = 0
    for _ in range(60):
        found = ratio_of([draws.normal(0.2, 0.05, 10)], [draws.normal(0, 0.05, 10)])
        held += found.low <= np.exp(0.2) <= found.high
    # 95 % of 60 are 57; fewer than 50 come of a true 95 % once in 2,000 times.
    assert held >= 50


def test_pairs_of_blocks_are_free_of_what_slows_both():
    machine = np.array([1.0, 3.0, 1.2, 2.0, 1.1, 4.0])
    found = paired_ratio({"blocks_ms": (1.5 * machine).tolist()}, {"blocks_ms": machine.tolist()})
    assert (found.low, found.high) == (pytest.approx(1.5), pytest.approx(1.5))
    assert paired_ratio({"blocks_ms": [1.0]}, {"blocks_ms": [1.0]}) is None
    assert paired_ratio({"blocks_ms": [1.0, 2.0]}, {"blocks_ms": [1.0]}) is None
    assert paired_ratio({}, {}) is None


def test_the_same_latency_passes_after_one_run(tmp_path):
    known = saved(tmp_path, [row("ort fp32", 2.0)])
    result, said = compared(known, [row("ort fp32", 2.02, seed=1, sha256="new")])
    assert (result["runs"], result["rows"][0]["verdict"], said) == (1, "passed", [])
    low, high = result["rows"][0]["interval"]
    assert low <= 1.01 <= high


def test_a_slowdown_needs_two_runs_and_is_told_with_its_numbers(tmp_path):
    known = saved(tmp_path, [row("ort fp32", 2.0)])
    runs = [[row("ort fp32", 3.0, seed=seed, sha256="new")] for seed in (1, 2)]
    result, findings = compare_runs(known, runs[0], again(runs[1]), 1.1)
    assert (result["runs"], result["rows"][0]["verdict"]) == (2, "slower")
    (finding,) = findings
    assert (finding.code, finding.severity) == ("DK412", "error")
    assert finding.message.startswith("ort fp32 is slower: 1.5")
    assert "ms a call then" in finding.message
    assert "at most 1.1x is allowed" in finding.message
    allowed, said = compared(known, [row("ort fp32", 3.0, seed=1, sha256="new")], limit=2.0)
    assert (allowed["rows"][0]["verdict"], said) == ("passed", [])


def test_one_run_at_the_old_speed_refutes_a_slow_one(tmp_path):
    known = saved(tmp_path, [row("ort fp32", 2.0)])
    slow, quick = (row("ort fp32", median, seed=3, sha256="new") for median in (3.0, 2.0))
    result, said = compared(known, [slow], [quick])
    assert (result["rows"][0]["verdict"], said) == ("passed", [])


def test_what_stays_undecided_is_a_warning_after_the_last_run(tmp_path):
    known = saved(tmp_path, [row("ort fp32", 2.0, noise=0.4)])
    runs = [[row("ort fp32", 2.6, seed=seed, sha256="new")] for seed in range(1, RUNS + 1)]
    result, said = compared(known, *runs)
    assert (result["runs"], result["rows"][0]["verdict"], said) == (RUNS, "undecided", [("DK414", "warning")])


def test_a_slower_machine_is_no_slower_model_where_a_reference_tells(tmp_path):
    known = saved(tmp_path, [row("ort fp32", 2.0, sha256="same"), row("ort int8", 1.0, seed=1)])
    machine = 1.5
    now = [row("ort fp32", 2.0 * machine, seed=2, sha256="same"), row("ort int8", machine, seed=3, sha256="new")]
    result, said = compared(known, now)
    reference, candidate = result["rows"]
    assert (reference["verdict"], candidate["verdict"]) == ("reference", "passed")
    assert candidate["relative_to"] == ["ort fp32"]
    assert candidate["ratio"] == pytest.approx(1.0, abs=0.05)
    assert said == [("DK415", "note")]
    slower = [now[0], row("ort int8", 1.3 * machine, seed=4, sha256="new")]
    result, said = compared(known, slower, slower)
    assert (result["rows"][1]["verdict"], said[-1]) == ("slower", ("DK412", "error"))


def test_unchanged_artifacts_are_held_against_each_other_and_alone_against_itself(tmp_path):
    rows = [row("ort fp32", 2.0), row("ort int8", 1.0)]
    known = saved(tmp_path, rows)
    now = [row("ort fp32", 3.0, seed=1), row("ort int8", 1.5, seed=2)]
    result, said = compared(known, now)
    assert ([one["verdict"] for one in result["rows"]], said) == (["passed", "passed"], [])
    alone, findings = compare_runs(known, now[:1], again(now[:1]), 1.1)
    assert alone["rows"][0]["verdict"] == "slower"
    assert "its bytes and engine are the same" in findings[0].message


def test_on_a_busy_machine_processor_time_is_compared(tmp_path):
    known = saved(tmp_path, [row("ort fp32", 2.0)])
    busy = row("ort fp32", 9.0, noise=0.3, seed=1, sha256="new", waited_share=0.8)
    busy["cpu_ms"] = [1.01] * 10
    result, said = compared(known, [busy])
    assert (result["rows"][0]["measure"], result["rows"][0]["verdict"], said) == ("processor time", "passed", [])
    slower = {**busy, "cpu_ms": [1.4] * 10}
    result, findings = compare_runs(known, [slower], again([slower]), 1.1)
    assert "of the processor time in baseline.json" in findings[0].message
    assert "since other programs had the processor" in findings[0].message
    served = {**busy, "cpu_ms": []}
    assert judge(known, [[served]], 1.1)[0]["measure"] == "latency"


def test_another_engine_and_what_is_not_in_it_are_told(tmp_path):
    known = saved(tmp_path, [row("ort fp32", 2.0)])
    now = [row("ort fp32", 2.0, seed=1, runtime="engine 2"), row("ov fp32", 1.0)]
    result, said = compared(known, now)
    assert [one["verdict"] for one in result["rows"]] == ["passed", "new"]
    assert said == [("DK415", "warning")] * 2
    with pytest.raises(UsageError) as caught:
        compared(known, [row("ov fp16", 1.0)])
    assert caught.value.code == "DK413"
    assert "it has ort fp32" in caught.value.context[0]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"machine": {**MACHINE, "cpu": "B"}}, "cpu: A there, B here"),
        ({"machine": {**MACHINE, "cpus": 8}}, "cpus: 2 there, 8 here"),
        ({"threads": 4}, "threads: None there, 4 here"),
        ({"batch": 8}, "batch: 1 there, 8 here"),
        ({"data_digest": "other"}, "data digest: d there, other here"),
    ],
)
def test_another_machine_or_setting_is_not_comparable(tmp_path, changed, said):
    known = saved(tmp_path, [row("ort fp32", 2.0)])
    same = {"machine": MACHINE, "threads": None, "batch": 1, "data_digest": "d", "device": "cpu"}
    require_comparable(known, same)
    with pytest.raises(UsageError) as caught:
        require_comparable(known, {**same, **changed})
    assert (caught.value.code, caught.value.exit_code, caught.value.context) == ("DK413", 2, (said,))


@pytest.mark.parametrize(
    "text",
    [
        "<html>",
        "[1]",
        "{}",
        "[" * 100_000,
        json.dumps({"schema": SCHEMA, "command": "run", "metrics": {"rows": []}}),
        json.dumps({"schema": SCHEMA, "command": "bench", "metrics": {"rows": [{"p50_ms": 1.0}], "machine": {}}}),
        json.dumps({"schema": SCHEMA, "command": "bench", "metrics": {"rows": 3, "machine": {}}}),
    ],
)
def test_what_is_no_report_of_bench_is_refused(tmp_path, text):
    file = tmp_path / "baseline.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidFileError) as caught:
        read_baseline(file)
    assert caught.value.code == "DK416"


def test_rows_are_matched_by_name_first(tmp_path):
    first, second = (row("ort fp32", median, artifact=f"/a/{name}.onnx") for median, name in ((1.0, "a"), (5.0, "b")))
    known = saved(tmp_path, [first, second])
    pairs = module._pairs(known.rows, [{**second, "artifact": "/elsewhere/b.onnx"}])
    assert pairs[0].before["p50_ms"] == pytest.approx(5.0, rel=0.1)
    alone = module._pairs([first], [{**second, "artifact": "/elsewhere/renamed.onnx"}])
    assert alone[0].before["p50_ms"] == pytest.approx(1.0, rel=0.1)
