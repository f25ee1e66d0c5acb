"""A Report for a person at a terminal: a layout for each command, findings grouped, readable without colour."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, TextIO

from rich import box
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from deploykit.render.failure import has_colour, printable
from deploykit.render.grouping import before_numbers, grouped
from deploykit.render.sections import sections
from deploykit.render.targets import Block, blocks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from deploykit.render.sections import Section
    from deploykit.report import Finding, Report

WIDTH = 110
_GAP = 2
_FOLDED = 24  # what a column of text needs at least
_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}
_CELLS = {
    "passed": "green",
    "yes": "green",
    "installed": "green",
    "no": "dim",
    "FAILED": "bold red",
    "ERROR": "bold red",
    "SKIPPED": "bold yellow",
}
# Their table says it all.
_WITHOUT_END = {"targets", "doctor", "explain", "inspect"}
# More than so many notes of a check are counted only, unless they are asked for.
_MANY_NOTES = 12
_PLACES = 5
_VERDICTS = {"does not run": "bold red", "runs whole": "green", "runs elsewhere": "yellow", "unknown": "yellow"}
_ENDS = {"passed": "bold green", "failed": "bold red", "error": "bold red"}


def render(report: Report) -> str:
    """The report as plain text of a fixed width."""
    stream = io.StringIO()
    Console(file=stream, width=WIDTH, color_system=None, force_terminal=False).print(compose(report, WIDTH))
    return _without_trailing_spaces(stream.getvalue())


def show(report: Report, stream: TextIO, *, brief: bool = False, verbose: bool = False) -> None:
    """Prints the report at the stream's width, in colour where it has one.

    brief: notes are counted only. verbose: no list is folded, and all notes of a check are shown.
    """
    colour = has_colour(stream)
    buffer = stream if colour else io.StringIO()
    width = None if stream.isatty() or "COLUMNS" in os.environ else WIDTH
    console = Console(file=buffer, width=width, color_system="auto" if colour else None, force_terminal=colour)
    console.print(compose(report, console.width, brief=brief, verbose=verbose))
    if isinstance(buffer, io.StringIO):
        stream.write(_without_trailing_spaces(buffer.getvalue()))


def _without_trailing_spaces(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.rstrip().splitlines()) + "\n"


def compose(report: Report, width: int = WIDTH, *, brief: bool = False, verbose: bool = False) -> RenderableType:
    """The parts of a report for so many columns: tables, findings, and the last line that says how it ended."""
    shown = sections(report)
    first, rest = before_numbers(report.findings)
    parts = [*_findings(first), *([Text("")] if first and shown else [])]
    for section in shown:
        parts += _section(section, width, titled=len(shown) > 1)
    notes = sum(finding.severity == "note" for finding in rest)
    brief = brief or (report.command == "check" and notes > _MANY_NOTES and not verbose)
    shown_rest = [finding for finding in rest if not (brief and finding.severity == "note")]
    for block in blocks(report, shown_rest):
        parts += _block(block, places=None if verbose else _PLACES)
    if len(shown_rest) < len(rest):
        parts.append(
            Text(f"{len(rest) - len(shown_rest)} notes: --verbose shows them, --json and report.html hold them")
        )
    if report.command not in _WITHOUT_END:
        parts.append(_end(report))
    elif parts and isinstance(parts[-1], Text) and not parts[-1].plain:
        del parts[-1]
    return Group(*parts)


def _section(section: Section, width: int, *, titled: bool) -> list[RenderableType]:
    parts: list[RenderableType] = [Text(section.title, "bold")] if titled and section.title else []
    if section.columns:
        parts.append(_table(section, width))
    parts += [Text(printable(line)) for line in section.lines]
    return [*parts, Text("")]


def _table(section: Section, width: int) -> Table:
    shown = _columns_that_fit(section, width)
    table = Table(
        box=box.SIMPLE_HEAD,
        show_header=any(section.columns),
        show_edge=False,
        padding=(0, _GAP - 1, 0, 0),
        header_style="bold",
    )
    for index in shown:
        column = section.columns[index]
        numeric = column in section.numeric
        table.add_column(
            column,
            justify="right" if numeric else "left",
            no_wrap=column not in section.flexible,
            overflow="fold",
        )
    for row in section.rows:
        table.add_row(*(Text(printable(row[index]), _CELLS.get(row[index], "")) for index in shown))
    return table


def _columns_that_fit(section: Section, width: int) -> list[int]:
    """Indices of the columns to show: droppable ones go, in their order, until the rest has room."""

    def need(index: int) -> int:
        column = section.columns[index]
        longest = max([len(column), *(len(row[index]) for row in section.rows)])
        return min(longest, _FOLDED) if column in section.flexible else longest

    shown = list(range(len(section.columns)))
    for name in section.droppable:
        if sum(need(index) + _GAP for index in shown) - 1 <= width:  # the last column keeps its padding
            break
        shown.remove(section.columns.index(name))
    return shown


def _block(block: Block, *, places: int | None) -> list[RenderableType]:
    if not block.heading:
        return _findings(block.findings, places=places)
    style = _VERDICTS.get(block.verdict, "yellow")
    heading = Text.assemble((printable(block.heading), "bold"), ": ", (block.verdict, style))
    parts = [Padding(part, (0, 0, 0, 2)) for part in _findings(block.findings, places=places, targets=False)]
    return [heading, *parts, Text("")]


def _findings(
    findings: Iterable[Finding], *, places: int | None = _PLACES, targets: bool = True
) -> list[RenderableType]:
    """places: so many of a group are listed, None for all. targets: whether each place says whose it is."""
    parts: list[RenderableType] = []
    for group in grouped(findings):
        head = group.findings[0]
        text = Text(overflow="fold")
        text.append(f"{head.severity}[{head.code}]", _STYLES[head.severity])
        first, *more = printable(head.message).splitlines() or [""]
        text.append(f": {first}")
        for line in more:
            text.append(f"\n  {line}")
        spots = group.places if targets else group.spots
        for place in spots[:places]:
            text.append(f"\n  --> {printable(place)}")
        if places is not None and len(spots) > places:
            text.append(f"\n  --> and {len(spots) - places} more like it (--verbose lists all)")
        if head.hint:
            text.append("\n  hint: ", "green")
            text.append(printable(head.hint))
        parts.append(text)
    return parts


def _end(report: Report) -> Text:
    counts = [
        f"{number} {name}{'s' if number > 1 else ''}"
        for name in ("error", "warning", "note")
        if (number := sum(finding.severity == name for finding in report.findings))
    ]
    facts = [*counts, f"{report.seconds:.1f} s"] if report.seconds else counts
    return Text.assemble(
        (f"{report.command}: {report.status}", _ENDS[report.status]), f" ({', '.join(facts)})" if facts else ""
    )
