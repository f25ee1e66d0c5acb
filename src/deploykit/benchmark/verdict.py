"""The verdict: what the rows of a benchmark mean, in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Row = Mapping[str, Any]

# A gain below this is not worth another precision: it is within what two runs of the same artifact differ by.
WORTHWHILE = 1.05
_FULL = "fp32"


def verdict(rows: Sequence[Row], unit: str = "%") -> str:
    """The sentence: the fastest row against the baseline, and each reduced precision that does not pay.

    The baseline is the first measured fp32 row, or the first measured one. Speed is the ratio of median latencies.
    unit: of the rows' accuracy.
    """
    measured = [row for row in rows if row["p50_ms"] is not None]
    if not measured:
        return "nothing was measured: no artifact runs on this machine"
    baseline = next((row for row in measured if row["precision"] == _FULL), measured[0])
    if len(measured) == 1:
        return f"{_alone(baseline)}{_not_measured(rows)}"
    others = [row for row in measured if row is not baseline]
    best = min(others, key=lambda row: float(row["p50_ms"]))
    sentences = []
    if _gain(best, baseline) >= WORTHWHILE:
        change = _accuracy_change(best, baseline, unit)
        sentences.append(f"{best['label']}: {_gain(best, baseline):.1f}x {baseline['label']}{change}")
    else:
        sentences.append(f"{baseline['label']} is the fastest here, or as fast as any")
    for row in others:
        own = _own_full_precision(row, measured)
        if own is not None and _gain(row, own) < WORTHWHILE:
            where = f" on {row['target']}" if len({r["target"] for r in measured}) > 1 else ""
            name = str(row["precision"]).upper()
            sentences.append(f"{name} is not faster here{where} (x{_gain(row, own):.2f}): keep FP32")
    if len(sentences) > 1 and sentences[0].endswith("as any") and len(measured) == 2:
        del sentences[0]  # the second sentence says it all
    return "; ".join(sentences) + _not_measured(rows)


def _gain(row: Row, baseline: Row) -> float:
    return float(baseline["p50_ms"]) / float(row["p50_ms"])


def _own_full_precision(row: Row, measured: Sequence[Row]) -> Row | None:
    """The fp32 row of the same target; None when there is none or the row is fp32 itself."""
    if row["precision"] == _FULL:
        return None
    return next((r for r in measured if r["precision"] == _FULL and r["target"] == row["target"]), None)


def _accuracy_change(row: Row, baseline: Row, unit: str) -> str:
    if row["accuracy"] is None or baseline["accuracy"] is None:
        return ""
    change = row["accuracy"] - baseline["accuracy"]
    return f", {change:+.1f} points" if unit == "%" else f", {change:+.4g}{unit and ' ' + unit}"


def _alone(row: Row) -> str:
    return (
        f"{row['label']}: p50 {row['p50_ms']:.3g} ms, p99 {row['p99_ms']:.3g} ms, {row['throughput_per_s']:.4g} per s"
    )


def _not_measured(rows: Sequence[Row]) -> str:
    missing = [row["label"] for row in rows if row["p50_ms"] is None]
    return f"; not measured here: {', '.join(missing)}" if missing else ""
