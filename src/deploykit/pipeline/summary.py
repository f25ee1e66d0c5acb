"""The end of a run: one row per artifact, the gates over all of them, and the report files."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from deploykit import io
from deploykit.artifact import Artifact, read_manifest
from deploykit.benchmark.verdict import verdict
from deploykit.report import Report, failure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from deploykit.pipeline.config import Config
    from deploykit.pipeline.outcome import Outcome

_BENCH_KEYS = ("p50_ms", "p95_ms", "p99_ms", "throughput_per_s", "rss_mb", "load_s")


def summarize(report: Report, config: Config, outcomes: Sequence[Outcome]) -> None:
    """Fills the report: rows, artifacts, findings (those of the accuracy gate too), the best artifact."""
    by_key = {outcome.step.key: outcome for outcome in outcomes}
    baseline = by_key["evaluate source"].metrics if "evaluate source" in by_key else {}
    measured = _bench_rows(by_key.get("bench"))
    rows = [
        _row(outcome, by_key, baseline, measured.get(outcome.step.key))
        for outcome in outcomes
        if outcome.step.stage == "convert"
    ]
    for outcome in outcomes:
        # Several steps may say the same of the same place (one data set, one model): once is enough.
        report.add(*(finding for finding in outcome.findings() if finding not in report.findings))
        if outcome.published is not None:
            made = read_manifest(outcome.published)
            report.artifacts += [dataclasses.replace(made, path=outcome.published)] if made else []
    # What check warned of and a later step failed by is one problem.
    failures = {
        dataclasses.replace(finding, severity="warning") for finding in report.findings if finding.severity == "error"
    }
    report.findings = [finding for finding in report.findings if finding not in failures]
    if config.evaluate is not None and config.evaluate.max_drop is not None:
        _gate_accuracy(report, rows, config.evaluate.max_drop)
    report.metrics = {
        "rows": rows,
        "source": {"metric": baseline.get("metric"), "accuracy": baseline.get("value")},
        "best": _best(rows),
        "verdict": _verdict(rows, by_key.get("bench"), measured, config, baseline) if "bench" in by_key else None,
        "check": by_key["check"].metrics.get("targets", []) if "check" in by_key else [],
        "steps": [
            {"step": o.step.key, "status": o.status, "seconds": round(o.seconds, 3), "reason": o.reason}
            for o in outcomes
        ],
    }


def _verdict(
    rows: Sequence[dict[str, Any]],
    bench: Outcome | None,
    measured: dict[str, dict[str, Any]],
    config: Config,
    metric: dict[str, Any],
) -> str | None:
    """The benchmark's verdict with what it could not know: accuracy, and which artifacts failed.

    metric: what an evaluation says of its unit and direction.
    """
    told: str | None = bench.metrics.get("verdict") if bench is not None else None
    if bench is None or not measured:
        return told
    by_place = {(row["target"], row["precision"]): row for row in rows}
    known = [
        one | {"accuracy": row["accuracy"], "status": row["status"]}
        for one in measured.values()
        if (row := by_place.get((one["target"], one["precision"]))) is not None
    ]
    if len(known) != len(measured):  # two artifacts of one target and precision
        return told
    return verdict(
        known,
        metric.get("unit", "%"),
        higher_is_better=metric.get("higher_is_better", True),
        max_drop=config.evaluate.max_drop if config.evaluate is not None else None,
        excluded=bench.metrics.get("over_budget", ()),
    )


def _bench_rows(outcome: Outcome | None) -> dict[str, dict[str, Any]]:
    """The benchmark's rows by the conversion step that made the artifact."""
    if outcome is None or outcome.report is None:
        return {}
    return dict(zip(outcome.subjects, outcome.metrics.get("rows", []), strict=False))


def _row(
    outcome: Outcome,
    by_key: dict[str, Outcome],
    baseline: dict[str, Any],
    measured: dict[str, Any] | None,
) -> dict[str, Any]:
    step = outcome.step
    accuracy = by_key.get(f"evaluate {step.target} {step.precision}")
    value = accuracy.metrics.get("value") if accuracy else None
    artifact: Artifact | None = outcome.report.artifact if outcome.report else None
    drop = None if value is None or baseline.get("value") is None else round(baseline["value"] - value, 6)
    row: dict[str, Any] = {
        "artifact": str(outcome.published) if outcome.published else None,
        "target": step.target,
        "precision": step.precision,
        "status": "passed" if outcome.passed else outcome.status,
        "execution": artifact.execution if artifact else "none",
        "engine": accuracy.metrics.get("engine") if accuracy else None,
        "accuracy": value,
        "accuracy_drop": drop,
        "parity": outcome.metrics.get("parity"),
        "size_bytes": artifact.size_bytes if artifact else None,
        "int8_macs_share": accuracy.metrics.get("int8_macs_share") if accuracy else None,
        "sha256": artifact.sha256 if artifact else None,
        "reason": outcome.reason,
    }
    return row | {key: (measured or {}).get(key) for key in _BENCH_KEYS}


def _gate_accuracy(report: Report, rows: Sequence[dict[str, Any]], max_drop: float) -> None:
    for row in rows:
        if row["accuracy_drop"] is not None and row["accuracy_drop"] > max_drop:
            row["status"] = "failed"
            report.add(
                failure(
                    "DK820",
                    f"{row['target']} {row['precision']} loses {row['accuracy_drop']:.2f} points of accuracy,"
                    f" and {max_drop:g} are allowed",
                    target=row["target"],
                    hint="more or better calibration data, another --method, or --exclude the nodes that lose most",
                )
            )


def _best(rows: Sequence[dict[str, Any]]) -> str | None:
    """The artifact with the lowest median latency that passed and was measured here: what the verdict goes by, too."""
    measured = [row for row in rows if row["status"] == "passed" and row["p50_ms"]]
    return min(measured, key=lambda row: float(row["p50_ms"]))["artifact"] if measured else None


def write_reports(report: Report, out: Path) -> None:
    """`report.json` and the self-contained `report.html` in the output folder, replaced whole."""
    from deploykit.render import render

    out.mkdir(parents=True, exist_ok=True)
    document = json.dumps(report.as_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    io.write_text(out / "report.json", document, force=True)
    io.write_text(out / "report.html", render(report, "html"), force=True)
