"""The tensors around the first one that differs, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deploykit.render.numbers import fixed, number

if TYPE_CHECKING:
    from collections.abc import Mapping

COLUMNS = ("tensor", "node", "op", "max abs", "max rel", "SQNR dB", "verdict")
NUMERIC = ("max abs", "max rel", "SQNR dB")
FLEXIBLE = ("tensor", "node")
DROPPABLE = ("max rel", "op")


def neighbourhood(located: Mapping[str, Any] | None) -> tuple[list[tuple[str, ...]], list[str]] | None:
    """Rows and the lines below for the `located` metrics of validate; None when nothing was located."""
    if not located or not located.get("first"):
        return None
    rows: list[tuple[str, ...]] = [
        (
            row["tensor"],
            row["node"],
            row["op"],
            number(row["max_abs"]),
            number(row["max_rel"]),
            "exact" if row["exact"] else fixed(row["sqnr_db"], 1),
            "FIRST" if row["first"] else "within" if row["agrees"] else "beyond",
        )
        for row in located["neighbourhood"]
    ]
    counted = f"{located['matched']} of {located['tensors']} tensors have a counterpart; {located['looks']} looks"
    lines = [
        f"on {located['sample']}; limits: {located['limits']} ({located['row']}, as for the outputs)",
        f"{counted}; execution: {located['execution']}",
    ]
    return rows, lines
