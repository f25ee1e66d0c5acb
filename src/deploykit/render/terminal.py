"""A Report for a person at a terminal: a layout for each command, findings grouped, readable without colour."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, TextIO

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from deploykit.render.failure import has_colour, printable
from deploykit.render.grouping import grouped, where
from deploykit.render.sections import sections

if TYPE_CHECKING:
    from rich.console import RenderableType

    from deploykit.render.sections import Section
    from deploykit.report import Report

WIDTH = 100
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
_ENDS = {"passed": "bold green", "failed": "bold red", "error": "bold red"}


def render(report: Report) -> str:
    """The report as plain text of a fixed width."""
    stream = io.StringIO()
    Console(file=stream, width=WIDTH, color_system=None, force_terminal=False).print(compose(report))
    return _without_trailing_spaces(stream.getvalue())


def show(report: Report, stream: TextIO) -> None:
    """Prints the report at the stream's width, in colour where it has one."""
    if has_colour(stream):
        Console(file=stream).print(compose(report))
        return
    buffer = io.StringIO()
    width = None if stream.isatty() else WIDTH
    console = Console(file=buffer, width=width, color_system=None, force_terminal=False)
    console.print(compose(report))
    stream.write(_without_trailing_spaces(buffer.getvalue()))


def _without_trailing_spaces(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.rstrip().splitlines()) + "\n"


def compose(report: Report) -> RenderableType:
    """The parts of a report: the command's tables, findings, and the last line that says how it ended."""
    shown = sections(report)
    parts: list[RenderableType] = []
    for section in shown:
        parts += _section(section, titled=len(shown) > 1)
    parts += _findings(report)
    if report.command not in _WITHOUT_END:
        parts.append(_end(report))
    return Group(*parts)


def _section(section: Section, *, titled: bool) -> list[RenderableType]:
    parts: list[RenderableType] = [Text(section.title, "bold")] if titled and section.title else []
    if section.columns:
        parts.append(_table(section))
    parts += [Text(printable(line)) for line in section.lines]
    return [*parts, Text("")]


def _table(section: Section) -> Table:
    head = any(section.columns)
    table = Table(
        box=box.SIMPLE_HEAD, show_header=head, show_edge=False, pad_edge=False, padding=(0, 1), header_style="bold"
    )
    for column in section.columns:
        numeric = column in section.numeric
        table.add_column(column, justify="right" if numeric else "left", no_wrap=numeric, overflow="fold")
    for row in section.rows:
        table.add_row(*(Text(printable(cell), _CELLS.get(cell, "")) for cell in row))
    return table


def _findings(report: Report) -> list[RenderableType]:
    parts: list[RenderableType] = []
    for group in grouped(report.findings):
        head = group.findings[0]
        text = Text(overflow="fold")
        text.append(f"{head.severity}[{head.code}]", _STYLES[head.severity])
        first, *more = printable(head.message).splitlines() or [""]
        text.append(f": {first}")
        for line in more:
            text.append(f"\n  {line}")
        places = [place for place in map(where, group.findings) if place]
        for place in places[:5]:
            text.append(f"\n  --> {printable(place)}")
        if len(places) > 5:
            text.append(f"\n  --> and {len(places) - 5} more (--json lists all)")
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
