"""Budgets: limits on what was measured; a broken one fails and names its number."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from deploykit.report import Finding, failure, warning

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class Budgets:
    """Limits, None where there is none. MB are 10^6 bytes; rss is the process's peak, the engine included."""

    max_p99_ms: float | None = None
    min_throughput: float | None = None
    max_size_mb: float | None = None
    max_rss_mb: float | None = None

    def check(self, rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
        """An error (DK442) for each row and limit that is broken, a warning (DK445) where nothing was measured."""
        limits = {name: limit for name, limit in dataclasses.asdict(self).items() if limit is not None}
        return [found for row in rows for name, limit in limits.items() if (found := _check(row, name, limit))]


# By limit: what it is called, where its number stands in a row, and its unit.
_NUMBERS: dict[str, tuple[str, Callable[[Mapping[str, Any]], float | None], str]] = {
    "max_p99_ms": ("p99 latency", lambda row: row["p99_ms"], "ms"),
    "min_throughput": ("throughput", lambda row: row["throughput_per_s"], "per s"),
    "max_size_mb": ("size", lambda row: row["size_mb"], "MB"),
    "max_rss_mb": ("peak memory", lambda row: row["rss_mb"]["peak"], "MB"),
}


def _check(row: Mapping[str, Any], name: str, limit: float) -> Finding | None:
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
