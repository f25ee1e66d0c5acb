"""How a report shows what quantizing each node costs, and what a search decided."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from deploykit.render.numbers import NONE, fixed, number, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

COLUMNS = ("node", "op", "MACs", "alone dB", "without dB", "drop")
NUMERIC = COLUMNS[2:]
DROPPABLE = ("drop", "without dB", "op")
# Rows of the table: the least sensitive ones of a large model are in the JSON report.
MOST = 24
# Bars of the drawing.
_DRAWN = 60
_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM, _LINE = 760, 250, 60, 8, 40, 18
_STEP = 10  # dB between two ticks
_GATE = 20.0  # dB that a whole INT8 model has to reach
_NAME = 36  # letters of a node's name that have room


def cells(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """The most sensitive nodes, in the order of `COLUMNS`."""
    return [
        [
            row["node"],
            row["op"],
            percent(row["macs_share"]),
            "exact" if row["exact"] else fixed(row["sqnr_alone_db"], 1) if _is_known(row) else "broken",
            fixed(row["sqnr_without_db"], 1),
            number(row["metric_drop"]),
        ]
        for row in rows[:MOST]
    ]


def _is_known(row: dict[str, Any]) -> bool:
    return row["sqnr_alone_db"] is not None


def explained(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What the columns mean, and what was left away."""
    lines = [
        "alone: SQNR with only this node in INT8; without: with all nodes but this one; drop: of the metric, alone"
    ]
    if len(rows) > MOST:
        least = fixed(rows[MOST]["sqnr_alone_db"], 1)
        lines.append(f"and {len(rows) - MOST} nodes more, from {least} dB on: --json lists them")
    return lines


def decided(search: dict[str, Any]) -> list[tuple[str, str]]:
    """A search as lines of (what, how)."""
    best, recipe, budget = search["best"], search["recipe"], search["budget"]
    added = [f"SmoothQuant {number(recipe['smooth_quant'])}"] if recipe["smooth_quant"] is not None else []
    added += ["bias correction"] if recipe["bias_correction"] else []
    limit = f"SQNR at least {number(budget['min_sqnr_db'])} dB"
    if budget["max_drop"] is not None:
        limit += f", {budget['metric']} drops by at most {number(budget['max_drop'])}"
    left = search["left_in_float"]
    found = f"{percent(best['int8_macs_share'])} of the MACs in INT8, SQNR {fixed(best['sqnr_db'], 1)} dB"
    if best["drop"] is not None:
        error = f" (standard error {number(best['error'])})" if best["error"] is not None else ""
        found += f", drop {number(best['drop'])}{error}"
    return [
        ("budget", limit),
        ("met", "yes" if search["met"] else "no"),
        ("found", found),
        ("method", ", ".join([recipe["method"], *added])),
        ("left in float", ", ".join(left[:4]) + (f" and {len(left) - 4} more" if len(left) > 4 else "") or NONE),
        ("evaluations", f"{search['evaluations']} in {number(search['seconds'])} s on {search['samples']} samples"),
    ]


@dataclasses.dataclass(frozen=True, slots=True)
class Bar:
    """One node: where its bar stands and ends, what it is called, and its level."""

    y: float
    length: float
    name: str
    label: str
    kind: str


@dataclasses.dataclass(frozen=True, slots=True)
class Bars:
    """Horizontal bars, and ticks as (position, text)."""

    bars: tuple[Bar, ...]
    ticks: tuple[tuple[float, str], ...]
    gate: float
    height: int
    hidden: int
    width: int = _WIDTH
    left: int = _LEFT
    top: int = _TOP
    line: int = _LINE

    @property
    def bottom(self) -> int:
        """Where the axis is."""
        return self.height - _BOTTOM


def bars(rows: Sequence[dict[str, Any]]) -> Bars | None:
    """The drawing of a ranking; None without one. A node that is exact alone has a bar of full length."""
    drawn = rows[:_DRAWN]
    if not drawn:
        return None
    levels = [row["sqnr_alone_db"] for row in drawn if row["sqnr_alone_db"] is not None]
    most = _STEP * max(3, -(-int(max(levels, default=0)) // _STEP) + 1)
    scale = (_WIDTH - _LEFT - _RIGHT) / most
    made = []
    for index, row in enumerate(drawn):
        level = row["sqnr_alone_db"]
        shown = most if row["exact"] else 0.0 if level is None else min(max(level, 0.0), most)
        kind = "low" if not row["exact"] and (level is None or level < _GATE) else ""
        label = "exact" if row["exact"] else "broken" if level is None else f"{level:.1f}"
        made.append(Bar(_TOP + _LINE * index, round(scale * shown, 1), _short(row["node"]), label, kind))
    ticks = tuple((round(_LEFT + scale * level, 1), str(level)) for level in range(0, most + 1, _STEP))
    gate = round(_LEFT + scale * _GATE, 1)
    height = _TOP + _BOTTOM + _LINE * len(drawn)
    return Bars(tuple(made), ticks, gate, height, len(rows) - len(drawn))


def _short(name: str) -> str:
    return name if len(name) <= _NAME else f"...{name[3 - _NAME :]}"
