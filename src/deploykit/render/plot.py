"""A small inline SVG: latency against accuracy, one numbered dot for each artifact that has both, and their names."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

WIDTH, MIN_HEIGHT = 760, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 270, 16, 44
_LINE = 19  # height of a line of the legend
_TICKS = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Dot:
    """One artifact: its number, its place in the drawing, where its name stands in the legend, and the name."""

    number: int
    x: float
    y: float
    legend_y: float
    label: str


@dataclasses.dataclass(frozen=True, slots=True)
class Plot:
    """Dots, and ticks as (position, text)."""

    dots: tuple[Dot, ...]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    height: int
    width: int = WIDTH
    left: int = _LEFT
    top: int = _TOP
    right: int = WIDTH - _RIGHT

    @property
    def bottom(self) -> int:
        """Where the horizontal axis is."""
        return self.height - _BOTTOM


def scatter(rows: Iterable[dict[str, Any]]) -> Plot | None:
    """The plot of rows with `p50_ms` and `accuracy`; None where fewer than two have both."""
    points = []
    for row in rows:
        accuracy = row.get("accuracy")
        accuracy = accuracy.get("value") if isinstance(accuracy, dict) else accuracy
        if row.get("p50_ms") is not None and accuracy is not None:
            name = f"{row['target']} {row['precision']}" if row.get("target") else str(row.get("artifact"))
            points.append((float(row["p50_ms"]), float(accuracy), name))
    if len(points) < 2:
        return None
    x_low, x_high = _range([0.0, *(x for x, _, _ in points)])
    y_low, y_high = _range([y for _, y, _ in points])
    if all(y <= 100 for _, y, _ in points):
        y_high = max(min(y_high, 100.0), y_low + 1e-9)  # nothing is better than 100 %
    height = max(MIN_HEIGHT, _TOP + _BOTTOM + _LINE * len(points))
    right, bottom = WIDTH - _RIGHT, height - _BOTTOM

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            round(_LEFT + (x - x_low) / (x_high - x_low) * (right - _LEFT), 1),
            round(bottom - (y - y_low) / (y_high - y_low) * (bottom - _TOP), 1),
        )

    dots = tuple(
        Dot(index, *at(x, y), _TOP + _LINE * (index - 0.5), f"{name}: {x:.3g} ms, {y:.2f}")
        for index, (x, y, name) in enumerate(points, 1)
    )
    steps = [i / _TICKS for i in range(_TICKS + 1)]
    x_ticks = tuple((at(x_low + s * (x_high - x_low), y_low)[0], f"{x_low + s * (x_high - x_low):.3g}") for s in steps)
    y_ticks = tuple((at(x_low, y_low + s * (y_high - y_low))[1], f"{y_low + s * (y_high - y_low):.2f}") for s in steps)
    return Plot(dots, x_ticks, y_ticks, height)


def _range(values: list[float]) -> tuple[float, float]:
    """A range around the values with some air, never empty."""
    low, high = min(values), max(values)
    air = (high - low) * 0.1 or max(abs(high) * 0.01, 0.01)
    return (low if low == 0 else low - air), high + air
