"""Budgets: limits on what was measured; a broken one fails and names its number."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from deploykit.benchmark.verdict import baseline_of, lost
from deploykit.report import Finding, failure, warning

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Row = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Budgets:
    """Limits, None where there is none. MB are 10^6 bytes; rss is the process's peak, the engine included.

    max_drop: of accuracy against the baseline of the verdict, in the metric's unit.
    """

    max_p99_ms: float | None = None
    min_throughput: float | None = None
    max_size_mb: float | None = None
    max_rss_mb: float | None = None
    max_drop: float | None = None

    def check(
        self, rows: Sequence[Row], unit: str = "%", *, higher_is_better: bool = True
    ) -> list[tuple[Row, Finding]]:
        """Rows with an error (DK442) for each broken limit, and a warning (DK445) where nothing was measured."""
        limits = {name: limit for name, limit in dataclasses.asdict(self).items() if limit is not None}
        drop = limits.pop("max_drop", None)
        found = [(row, one) for row in rows for name, limit in limits.items() if (one := _check(row, name, limit))]
        return found + ([] if drop is None else _dropped(rows, drop, unit, higher_is_better))


# By limit: what it is called, where its number stands in a row, and its unit.
_NUMBERS: dict[str, tuple[str, Callable[[Row], float | None], str]] = {
    "max_p99_ms": ("p99 latency", lambda row: row["p99_ms"], "ms"),
    "min_throughput": ("throughput", lambda row: row["throughput_per_s"], "per s"),
    "max_size_mb": ("size", lambda row: row["size_mb"], "MB"),
    "max_rss_mb": ("peak memory", lambda row: row["rss_mb"]["peak"], "MB"),
}


def _check(row: Row, name: str, limit: float) -> Finding | None:
    what, read, unit = _NUMBERS[name]
    number = read(row)
    option = f"--{name.replace('_', '-')}"
    if number is None:
        text = f"{row['label']}: {what} was not measured, so its budget of {limit:g} {unit} is not checked"
        return warning("DK445", text, target=row["target"])
    low = name.startswith("min")
    if (number < limit) if low else (number > limit):
        side = "below the minimum" if low else "above the maximum"
        text = f"{row['label']}: {what} {number:.4g} {unit} is {side} of {limit:g} {unit} ({option})"
        return failure("DK442", text, target=row["target"])
    return None


def _dropped(rows: Sequence[Row], limit: float, unit: str, higher_is_better: bool) -> list[tuple[Row, Finding]]:
    baseline, found = baseline_of(rows), []
    for row in rows:
        if baseline is None or row is baseline:
            continue
        drop = lost(row, baseline, higher_is_better=higher_is_better)
        name = "points" if unit == "%" else unit
        if drop is None:
            text = f"{row['label']}: accuracy was not measured, so its drop is not checked"
            found.append((row, warning("DK445", text, target=row["target"])))
        elif drop > limit:
            text = f"{row['label']} loses {drop:.4g} {name} of accuracy, and {limit:g} are allowed (--max-drop)"
            found.append((row, failure("DK442", text, target=row["target"])))
    return found
