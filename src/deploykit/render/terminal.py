"""A Report for a person at a terminal: a layout for each command, findings grouped, readable without colour."""

from __future__ import annotations

import io
import os
import re
from typing import TYPE_CHECKING, TextIO

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from deploykit.render.failure import has_colour, printable
from deploykit.render.grouping import before_numbers, grouped
from deploykit.render.sections import sections
from deploykit.render.targets import Block, blocks
from deploykit.render.wrapping import wrapped

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from deploykit.render.table import Section
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
# A check of more targets than this says no more than so many things of each, unless all is asked for.
_MANY_TARGETS, _GROUPS = 4, 5
_VERDICTS = {"does not run": "bold red", "runs whole": "green", "runs elsewhere": "yellow", "unknown": "yellow"}
_COMMAND = re.compile(r"`deploykit (?P<verb>\w+) [^`]+`")
_ENDS = {"passed": "bold green", "failed": "bold red", "error": "bold red"}


def render(report: Report) -> str:
    """The report as plain text of a fixed width."""
    stream = io.StringIO()
    console = Console(file=stream, width=WIDTH, color_system=None, force_terminal=False)
    console.print(compose(report, WIDTH), crop=False)
    return _without_trailing_spaces(stream.getvalue())


def show(report: Report, stream: TextIO, *, brief: bool = False, verbose: bool = False) -> None:
    """Prints the report at the stream's width, in colour where it has one.

    brief: notes are counted only. verbose: no list is folded, and all notes of a check are shown.
    """
    colour = has_colour(stream)
    buffer = stream if colour else io.StringIO()
    width = None if stream.isatty() or "COLUMNS" in os.environ else WIDTH
    console = Console(file=buffer, width=width, color_system="auto" if colour else None, force_terminal=colour)
    console.print(compose(report, console.width, brief=brief, verbose=verbose), crop=False)
    if isinstance(buffer, io.StringIO):
        stream.write(_without_trailing_spaces(buffer.getvalue()))


def _without_trailing_spaces(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.rstrip().splitlines()) + "\n"


def compose(report: Report, width: int = WIDTH, *, brief: bool = False, verbose: bool = False) -> RenderableType:
    """The parts of a report for so many columns: tables, findings, and the last line that says how it ended."""
    shown = sections(report)
    first, rest = before_numbers(report.findings)
    parts = [*_findings(first, width), *([Text("")] if first and shown else [])]
    for section in shown:
        parts += _section(section, width, titled=len(shown) > 1)
    notes = sum(finding.severity == "note" for finding in rest)
    brief = brief or (report.command == "check" and notes > _MANY_NOTES and not verbose)
    shown_rest = [finding for finding in rest if not (brief and finding.severity == "note")]
    told = blocks(report, shown_rest)
    most = _GROUPS if len(told) > _MANY_TARGETS and not verbose else None
    for block in told:
        parts += _block(block, width, places=None if verbose else _PLACES, most=most)
    if len(shown_rest) < len(rest):
        held = "--json and report.html hold" if report.command == "run" else "--json holds"
        parts.append(Text(f"{len(rest) - len(shown_rest)} notes: --verbose shows them, {held} them"))
    if report.command not in _WITHOUT_END:
        parts.append(_end(report))
    elif parts and isinstance(parts[-1], Text) and not parts[-1].plain:
        del parts[-1]
    return Group(*parts)


def _section(section: Section, width: int, *, titled: bool) -> list[RenderableType]:
    parts: list[RenderableType] = [Text(section.title, "bold")] if titled and section.title else []
    if section.columns:
        parts.append(_table(section, width))
    parts += [_lines(wrapped(printable(line), width, rest="  ")) if line else Text("") for line in section.lines]
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
        table.add_row(*(Text(printable(row[index]), _style(section.columns[index], row[index])) for index in shown))
    return table


def _style(column: str, cell: str) -> str:
    """A verdict looks in the table as it does above its findings."""
    if column == "verdict" and (cell in _VERDICTS or cell.startswith("runs ")):
        return _VERDICTS.get(cell, "yellow")
    return _CELLS.get(cell, "")


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


def _block(block: Block, width: int, *, places: int | None, most: int | None) -> list[RenderableType]:
    if not block.heading:
        return _findings(block.findings, width, places=places)
    style = _VERDICTS.get(block.verdict, "yellow")
    heading = Text.assemble((printable(block.heading), "bold"), ": ", (block.verdict, style))
    parts = _findings(block.findings, width, places=places, indent="  ", targets=False)
    left = len(parts) - most if most is not None else 0
    if left > 1:  # the line that says so is as long as the shortest finding
        parts[most:] = [Text(f"  and {left} findings more: --verbose, or --target {block.heading} alone")]
    return [heading, *parts, Text("")]


def _findings(
    findings: Iterable[Finding], width: int, *, places: int | None = _PLACES, indent: str = "", targets: bool = True
) -> list[RenderableType]:
    """places: so many of a group are listed, None for all. targets: whether each place says whose it is."""
    parts: list[RenderableType] = []
    told: list[str] = []
    for group in grouped(findings):
        head = group.findings[0]
        mark = f"{head.severity}[{head.code}]"
        first, *more = printable(group.message).splitlines() or [""]
        lines = [wrapped(f"{mark}: {first}", width, first=indent, rest=f"{indent}  ")]
        lines += [wrapped(line, width, first=f"{indent}  ", rest=f"{indent}  ") for line in more]
        spots = group.places if targets else group.spots
        for place in spots[:places]:
            lines.append(wrapped(printable(place), width, first=f"{indent}  --> ", rest=f"{indent}      "))
        if places is not None and len(spots) > places:
            lines.append(f"{indent}  --> and {len(spots) - places} more like it (--verbose lists all)")
        for hint in group.hints:
            shown = printable(_once(hint, told))
            lines.append(wrapped(shown, width, first=f"{indent}  hint: ", rest=f"{indent}        "))
        text = _lines("\n".join(lines))
        text.stylize(_STYLES[head.severity], len(indent), len(indent) + len(mark))
        text.highlight_regex(r"(?m)^ *hint:", "green")
        parts.append(text)
    return parts


def _once(hint: str, told: list[str]) -> str:
    """The hint; a long command that an earlier hint in `told` gave is not given in full again. Adds it to `told`."""
    found = _COMMAND.search(hint)
    before, previous = " ".join(told), told[-1] if told else ""
    told.append(hint)
    if hint == previous:
        return "as above"
    if found is None or found.group() not in before:
        return hint
    name = "--fix" if " --fix" in found.group() else found["verb"]
    return f"{hint[: found.start()]}the same {name} command{hint[found.end() :]}"


def _lines(text: str) -> Text:
    """Lines as they are: broken already, and too long only where a command or a name must not be broken."""
    return Text(text, no_wrap=True, overflow="ignore")


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
