"""The verdict: what the rows of a benchmark mean, in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deploykit.benchmark.intervals import paired_ratio

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    Row = Mapping[str, Any]

# A gain below this is not worth another precision: it is within what two runs of the same artifact differ by.
WORTHWHILE = 1.05
# An artifact that loses more is not recommended where no limit is given: MLPerf Inference's quality target is 99 % of
# the reference's accuracy (P. Mattson et al., and the rules of its closed division).
MAX_DROP_POINTS, MAX_DROP_SHARE = 1.0, 0.01
_FULL = "fp32"


def verdict(
    rows: Sequence[Row],
    unit: str = "%",
    *,
    higher_is_better: bool = True,
    max_drop: float | None = None,
    excluded: Collection[str] = (),
) -> str:
    """The sentence: the fastest row against the baseline, what is not recommended and why, precisions that do not pay.

    The baseline is the first measured fp32 row, or the first measured one. Speed is the ratio of median latencies; a
    row is the faster one only if the interval of that ratio lies above 1. unit, higher_is_better: of the accuracy.
    max_drop: in that unit; None: 1 point of a percentage, 1 % of other values. excluded: labels of rows that break a
    budget. Rows that are simulated, excluded, or lose too much are never recommended.
    """
    measured, baseline = _measured(rows), baseline_of(rows)
    if baseline is None:
        return "nothing was measured: no artifact runs on this machine"
    judge = _Judge(baseline, unit, higher_is_better, max_drop, frozenset(excluded))
    if len(measured) == 1:
        return f"{_alone(baseline)}{judge.warned(baseline)}{_not_measured(rows)}"
    others = [row for row in measured if row is not baseline]
    faster = sorted((row for row in others if _gain(row, baseline) >= WORTHWHILE), key=lambda row: float(row["p50_ms"]))
    best = next((row for row in faster if not judge.refused(row)), None)
    sentences = []
    if best is not None and not _is_sure(best, baseline):
        sentences.append(f"{best['label']} and {baseline['label']} differ within noise{_interval(best, baseline)}")
    elif best is not None:
        sentences.append(f"{best['label']}: {_gain(best, baseline):.1f}x {baseline['label']}{judge.change(best)}")
    elif judge.refused(baseline):
        sentences.append(f"nothing is recommended: {baseline['label']} {judge.refused(baseline)}")
    else:
        sentences.append(f"{baseline['label']} is the fastest here, or as fast as any")
    sentences += [f"not {row['label']}: it {judge.refused(row)}" for row in faster if judge.refused(row)]
    for row in others:
        own = _own_full_precision(row, measured)
        if own is not None and _gain(row, own) < WORTHWHILE:
            where = f" on {row['target']}" if len({r["target"] for r in measured}) > 1 else ""
            name = str(row["precision"]).upper()
            sentences.append(f"{name} is not faster here{where} (x{_gain(row, own):.2f}): keep FP32")
    if len(measured) == 2 and sentences[0].endswith("as any") and sentences[-1].endswith("keep FP32"):
        del sentences[0]  # the second sentence says it all
    return "; ".join(sentences) + _not_measured(rows)


def baseline_of(rows: Sequence[Row]) -> Row | None:
    """The row that others are held against: the first measured fp32 one, or the first measured one."""
    measured = _measured(rows)
    return next((row for row in measured if row["precision"] == _FULL), measured[0] if measured else None)


def _measured(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["p50_ms"] is not None]


def lost(row: Row, baseline: Row, *, higher_is_better: bool) -> float | None:
    """How much worse a row's accuracy is than the baseline's; None where one has none."""
    if row["accuracy"] is None or baseline["accuracy"] is None:
        return None
    change = float(row["accuracy"]) - float(baseline["accuracy"])
    return -change if higher_is_better else change


class _Judge:
    """What speaks against recommending a row."""

    def __init__(
        self, baseline: Row, unit: str, higher_is_better: bool, max_drop: float | None, excluded: frozenset[str]
    ) -> None:
        self._baseline, self._unit, self._higher, self._excluded = baseline, unit, higher_is_better, excluded
        share = MAX_DROP_SHARE * abs(float(baseline["accuracy"] or 0.0))
        self._max_drop = max_drop if max_drop is not None else MAX_DROP_POINTS if unit == "%" else share

    def refused(self, row: Row) -> str:
        """The reason; empty where there is none."""
        if row.get("execution") == "simulated":
            return "is simulated, and a simulation has no speed"
        if row.get("status") == "failed":
            return "failed its gate"
        if row["label"] in self._excluded:
            return "breaks a budget"
        drop = lost(row, self._baseline, higher_is_better=self._higher)
        # What a sum of rounded values leaves is not a loss.
        if drop is not None and drop > self._max_drop + 1e-9:
            return f"loses {self._amount(drop)}"
        return ""

    def warned(self, row: Row) -> str:
        """The reason as the end of a sentence."""
        reason = self.refused(row)
        return f"; it {reason}" if reason else ""

    def change(self, row: Row) -> str:
        """The change of accuracy, as in `, -0.2 points`."""
        if row["accuracy"] is None or self._baseline["accuracy"] is None:
            return ""
        change = row["accuracy"] - self._baseline["accuracy"]
        if self._unit == "%":
            return f", {change + 0.0:+.1f} points"
        return f", {change:+.4g}{self._unit and ' ' + self._unit}"

    def _amount(self, drop: float) -> str:
        return f"{drop:.1f} points" if self._unit == "%" else f"{drop:.4g}{self._unit and ' ' + self._unit}"


def _gain(row: Row, baseline: Row) -> float:
    return float(baseline["p50_ms"]) / float(row["p50_ms"])


def _is_sure(row: Row, baseline: Row) -> bool:
    """Whether the interval of the gain lies above 1; rows without blocks are taken at their word."""
    found = paired_ratio(baseline, row)
    return found is None or found.low > 1


def _interval(row: Row, baseline: Row) -> str:
    found = paired_ratio(baseline, row)
    return "" if found is None else f" (x{found.low:.2f} to x{found.high:.2f})"


def _own_full_precision(row: Row, measured: Sequence[Row]) -> Row | None:
    """The fp32 row of the same target; None when there is none or the row is fp32 itself."""
    if row["precision"] == _FULL:
        return None
    return next((r for r in measured if r["precision"] == _FULL and r["target"] == row["target"]), None)


def _alone(row: Row) -> str:
    return (
        f"{row['label']}: p50 {row['p50_ms']:.3g} ms, p99 {row['p99_ms']:.3g} ms, {row['throughput_per_s']:.4g} per s"
    )


def _not_measured(rows: Sequence[Row]) -> str:
    missing = [row["label"] for row in rows if row["p50_ms"] is None]
    return f"; not measured here: {', '.join(missing)}" if missing else ""
