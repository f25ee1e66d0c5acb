"""How a report of several targets is laid out: a row for each, and its findings under a heading of its own."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from deploykit.render.numbers import number, percent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from deploykit.report import Finding, Report

COUNTS = ("supported", "conditional", "unsupported", "unknown")
COLUMNS = ("target", "verdict", "nodes", *COUNTS, "MACs", "partitions")
NUMERIC = COLUMNS[2:]
# What a narrow terminal can do without; the verdict says the partitions, and the counts add up to the nodes.
DROPPABLE = ("partitions", "nodes", "unknown", "conditional")


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """The findings about one target, or about none.

    label: the target as findings name it, and heading: with its version; "" where there is no target to name.
    """

    label: str
    heading: str
    verdict: str
    findings: tuple[Finding, ...]


def shown(row: dict[str, Any]) -> str:
    """A target as the table names it: always with its version, where it has one."""
    return f"{row['name']}@{row['version']}" if row.get("version") else str(row["name"])


def labels(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The targets as findings name them: with the version only where a target is there more than once."""
    names = [row["name"] for row in rows]
    return [shown(row) if names.count(row["name"]) > 1 else row["name"] for row in rows]


def cells(row: dict[str, Any]) -> list[str]:
    """One row of the table, in the order of `COLUMNS`."""
    counts = [number(row.get(key)) for key in ("nodes", *COUNTS)]
    return [shown(row), row.get("verdict") or "-", *counts, percent(row.get("macs_share")), number(row["partitions"])]


def judges(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Who judged which targets, a line for each source."""
    who: dict[str, list[str]] = {}
    for row in rows:
        if row.get("source"):
            who.setdefault(row["source"], []).append(shown(row))
    return [f"{', '.join(targets)}: judged by {source}" for source, targets in who.items()]


def blocks(report: Report, findings: Iterable[Finding]) -> list[Block]:
    """The findings by target, in the order of the table; those about no target in it come last."""
    rows = report.metrics.get("targets", []) if report.command == "check" else []
    named = dict(zip(labels(rows), rows, strict=True))
    groups: dict[str, list[Finding]] = {label: [] for label in named}
    rest: list[Finding] = []
    for finding in findings:
        groups.get(finding.target or "", rest).append(finding)
    made = [
        Block(label, shown(named[label]), named[label].get("verdict") or "", tuple(found))
        for label, found in groups.items()
        if found
    ]
    return [*made, *([Block("", "", "", tuple(rest))] if rest else [])]
