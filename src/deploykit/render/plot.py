"""An inline SVG of a benchmark: latency against accuracy, or against size where no accuracy was measured.

The area of a dot is the artifact's size on disk. Dots are numbered beside themselves, where no other number or dot is,
and named in a legend: names of any length and twenty of them stay legible.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Row = dict[str, Any]

WIDTH, MIN_HEIGHT = 860, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 330, 20, 48
_LINE = 20  # height of a line of the legend
_TICKS = 7
_LARGEST, _SMALLEST, _PLAIN = 24.0, 4.0, 8.0  # radii
# Latencies further apart than this stand on a logarithmic axis.
_FAR = 15.0
_TEXT = 7.0  # half of the height of a number, and about the width of a digit
_NAME = 40  # letters of a name in the legend
_AROUND = 16


@dataclasses.dataclass(frozen=True, slots=True)
class Dot:
    """One artifact: its number, centre and radius, where the number and its name stand, and what a reader hears.

    lead: whether a line leads from the number to the dot, since it could not stand close by. dashed: a simulation.
    """

    number: int
    x: float
    y: float
    radius: float
    mark_x: float
    mark_y: float
    lead: bool
    dashed: bool
    legend_y: float
    name: str
    label: str


@dataclasses.dataclass(frozen=True, slots=True)
class Plot:
    """Dots, largest first so that none hides another; ticks as (position, text); what the axes and areas mean."""

    title: str
    dots: tuple[Dot, ...]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    x_title: str
    y_title: str
    notes: tuple[str, ...]
    height: int
    width: int = WIDTH
    left: int = _LEFT
    top: int = _TOP
    right: int = WIDTH - _RIGHT

    @property
    def bottom(self) -> int:
        """Where the horizontal axis is."""
        return self.height - _BOTTOM


@dataclasses.dataclass(frozen=True, slots=True)
class _Point:
    latency: float
    height: float
    size: float | None
    name: str
    dashed: bool


def scatter(rows: Iterable[Row]) -> Plot | None:
    """The plot of rows with a latency: against accuracy where any has one, else against size; None without either."""
    measured = [row for row in rows if row.get("p50_ms") is not None and row["p50_ms"] >= 0]
    by_accuracy = any(_accuracy(row) is not None for row in measured)
    read = _accuracy if by_accuracy else _megabytes
    drawn = [row for row in measured if read(row) is not None]
    if not drawn:
        return None
    points = [
        _Point(row["p50_ms"], float(read(row) or 0), _megabytes(row), _name(row), row.get("execution") == "simulated")
        for row in drawn
    ]
    height = max(MIN_HEIGHT, _TOP + _BOTTOM + _LINE * len(points))
    across, x_ticks, logarithmic = _latencies([point.latency for point in points], WIDTH - _RIGHT)
    up, y_ticks = _heights([point.height for point in points], height - _BOTTOM, by_accuracy=by_accuracy)
    sizes = [point.size for point in points if point.size]
    largest = max(sizes, default=0.0) if by_accuracy else 0.0
    centres = [(round(across(point.latency), 1), round(up(point.height), 1)) for point in points]
    radii = [_radius(point.size, largest) for point in points]
    places = _marks(centres, radii, (_LEFT, _TOP, WIDTH - _RIGHT, height - _BOTTOM))
    dots = [
        Dot(
            number=at + 1,
            x=centres[at][0],
            y=centres[at][1],
            radius=radii[at],
            mark_x=places[at][0],
            mark_y=places[at][1],
            lead=places[at][2],
            dashed=point.dashed,
            legend_y=_TOP + _LINE * (at + 0.5),
            name=_cut(point.name),
            label=_label(point, by_accuracy=by_accuracy),
        )
        for at, point in enumerate(points)
    ]
    notes = [f"The largest dot is {max(sizes):.3g} MB; areas are sizes on disk."] if largest else []
    left_out = len(measured) - len(drawn)
    notes += [f"{left_out} without accuracy {'is' if left_out == 1 else 'are'} not drawn."] if left_out else []
    what = "accuracy" if by_accuracy else "size"
    return Plot(
        f"Latency against {what}",
        tuple(sorted(dots, key=lambda dot: -dot.radius)),
        x_ticks,
        y_ticks,
        f"median latency, ms{', logarithmic' if logarithmic else ''} (left is better)",
        "accuracy" if by_accuracy else "size on disk, MB (down is better)",
        tuple(notes),
        height,
    )


def _accuracy(row: Row) -> float | None:
    value = row.get("accuracy")
    value = value.get("value") if isinstance(value, dict) else value
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def _megabytes(row: Row) -> float | None:
    size = row.get("size_bytes")
    value = row.get("size_mb") if size is None else size / 1e6
    return None if value is None else float(value)


def _name(row: Row) -> str:
    """What the row is called everywhere else."""
    if row.get("label"):
        return str(row["label"])
    return f"{row['target']} {row['precision']}" if row.get("target") else str(row.get("artifact"))


def _cut(name: str) -> str:
    """A long name without its middle: its end tells files apart."""
    half = (_NAME - 3) // 2
    return name if len(name) <= _NAME else f"{name[:half]}...{name[-half:]}"


def _label(point: _Point, *, by_accuracy: bool) -> str:
    facts = [f"{point.latency:.3g} ms"]
    facts += [f"{point.height:.2f}"] if by_accuracy else []
    facts += [f"{point.size:.3g} MB"] if point.size is not None else []
    return ", ".join(facts) + (" (simulated)" if point.dashed else "")


def _radius(size: float | None, largest: float) -> float:
    """A dot whose area is the size's share of the largest one, at least one that can be seen."""
    if not largest or size is None:
        return _PLAIN
    return round(max(_SMALLEST, _LARGEST * math.sqrt(size / largest)), 1)


def _latencies(values: Sequence[float], right: int) -> tuple[Callable[[float], float], tuple[Any, ...], bool]:
    """Where a latency stands, the ticks, and whether the axis is logarithmic; otherwise it begins at 0."""
    least, most = min(values), max(values)
    if least > 0 and most / least > _FAR:
        low, high = math.log10(least) - 0.12, math.log10(most) + 0.12

        def scaled(value: float) -> float:
            return _LEFT + (math.log10(value) - low) / (high - low) * (right - _LEFT)

        steps = (1, 2, 5) if high - low < 2.5 else (1,)
        powers = range(math.floor(low), math.ceil(high) + 1)
        marks = [step * 10.0**power for power in powers for step in steps]
        return scaled, tuple((round(scaled(m), 1), f"{m:g}") for m in marks if low <= math.log10(m) <= high), True
    top = most * 1.12 or 0.01

    def plain(value: float) -> float:
        return _LEFT + value / top * (right - _LEFT)

    return plain, tuple((round(plain(mark), 1), text) for mark, text in _round(0.0, top)), False


def _heights(
    values: Sequence[float], bottom: int, *, by_accuracy: bool
) -> tuple[Callable[[float], float], tuple[tuple[float, str], ...]]:
    low, high = _range(values)
    if by_accuracy and all(value <= 100 for value in values):
        high = max(min(high, 100.0), low + 1e-9)  # nothing is better than 100 %
    low = low if by_accuracy else 0.0

    def at(value: float) -> float:
        return bottom - (value - low) / (high - low) * (bottom - _TOP)

    return at, tuple((round(at(mark), 1), text) for mark, text in _round(low, high))


def _round(low: float, high: float) -> list[tuple[float, str]]:
    """Ticks at round numbers: multiples of 1, 2 or 5 times a power of ten, about `_TICKS` of them, as text."""
    rough = (high - low) / _TICKS
    power = math.floor(math.log10(rough))
    step = next(s * 10.0**power for s in (1, 2, 5, 10) if s * 10.0**power >= rough * 0.99)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [(at * step, f"{at * step:.{decimals}f}") for at in range(first, last + 1)]


def _range(values: Sequence[float]) -> tuple[float, float]:
    """A range around the values with some air, never empty."""
    low, high = min(values), max(values)
    air = (high - low) * 0.15 or max(abs(high) * 0.01, 0.01)
    return low - air, high + air


def _marks(
    centres: Sequence[tuple[float, float]], radii: Sequence[float], frame: tuple[float, float, float, float]
) -> list[tuple[float, float, bool]]:
    """Where each dot's number stands: nearest to it, on no other dot or number; whether a line has to lead there."""
    taken: list[tuple[float, float]] = []
    found = []
    for (x, y), radius in zip(centres, radii, strict=True):
        near = radius + _TEXT + 2
        spots = [
            (x + reach * math.cos(angle), y - reach * math.sin(angle), reach)
            for reach in (near + 10.0 * step for step in range(14))
            for angle in (math.pi / 4 + 2 * math.pi * turn / _AROUND for turn in range(_AROUND))
        ]
        free = (
            (across, down, reach) for across, down, reach in spots if _free(across, down, centres, radii, taken, frame)
        )
        across, down, reach = next(free, spots[0])
        taken.append((across, down))
        found.append((round(across, 1), round(down, 1), reach > near + 1))
    return found


def _free(
    x: float,
    y: float,
    centres: Sequence[tuple[float, float]],
    radii: Sequence[float],
    taken: Sequence[tuple[float, float]],
    frame: tuple[float, float, float, float],
) -> bool:
    left, top, right, bottom = frame
    if not (left + _TEXT <= x <= right + _LARGEST and top - _TEXT <= y <= bottom - _TEXT):
        return False
    if any(abs(x - a) < 2.6 * _TEXT and abs(y - b) < 2 * _TEXT for a, b in taken):
        return False
    return all(math.hypot(x - a, y - b) >= radius + _TEXT for (a, b), radius in zip(centres, radii, strict=True))
