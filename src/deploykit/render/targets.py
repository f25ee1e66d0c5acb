"""How a report of several targets is laid out: a row for each, and its findings under a heading of its own."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from deploykit.render.numbers import number, percent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from deploykit.report import Finding, Report

# The counts of a summary, and the words of the findings for them, which leave room at 80 columns.
COUNTS = {"supported": "taken", "conditional": "cond.", "unsupported": "refused", "unknown": "unknown"}
COLUMNS = ("target", "verdict", "nodes", *COUNTS.values(), "MACs", "partitions")
NUMERIC = COLUMNS[2:]
# What a narrow terminal can do without: the verdict says the partitions, and that something is unknown.
DROPPABLE = ("partitions", "nodes", "unknown", "cond.")
# Of so many sources each is told on a line of its own.
_FEW = 5


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
    """Who judged which targets: a line for each source, or a line for each kind of them where they are many."""
    who: dict[str, list[str]] = {}
    for row in rows:
        if row.get("source"):
            who.setdefault(row["source"], []).append(shown(row))
    if len(who) <= _FEW:
        return [f"{', '.join(targets)}: judged by {source}" for source, targets in who.items()]
    itself = [name for source, targets in who.items() if not source.endswith(" table") for name in targets]
    tables = sum(len(targets) for targets in who.values()) - len(itself)
    lines = [f"judged by what makes or runs it: {', '.join(itself)}"] if itself else []
    rest = f"judged by a table of its operators: the other {tables}" if itself else "judged by tables of operators: all"
    return [*lines, *([f"{rest} (--json names each source)"] if tables else [])]


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
