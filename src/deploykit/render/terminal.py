"""A Report for a person at a terminal: a layout for each command, findings grouped, readable without colour."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, TextIO

from rich.console import Console, Group
from rich.text import Text

from deploykit.render import layouts
from deploykit.render.failure import has_colour, printable
from deploykit.render.grouping import grouped, where
from deploykit.render.numbers import megabytes

if TYPE_CHECKING:
    from rich.console import RenderableType

    from deploykit.artifact import Artifact
    from deploykit.report import Report

WIDTH = 100
_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}
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
    """The parts of a report: the command's own table, artifacts, findings, and the last line that says how it ended."""
    parts: list[RenderableType] = list(layouts.layout(report))
    if report.command not in layouts.WITHOUT_ARTIFACTS:
        parts += [_artifact(artifact) for artifact in report.artifacts]
    parts += _findings(report)
    if report.command not in layouts.WITHOUT_END:
        parts.append(_end(report))
    return Group(*parts)


def _artifact(artifact: Artifact) -> Text:
    facts = [artifact.format, artifact.precision, f"{megabytes(artifact.size_bytes)} MB"]
    if artifact.opset is not None:
        facts.insert(1, f"opset {artifact.opset}")
    text = Text.assemble((f"{printable(str(artifact.path))}", "bold"), f"  {', '.join(facts)}", overflow="fold")
    for side, specs in (("in", artifact.inputs), ("out", artifact.outputs)):
        for spec in specs[:8]:
            text.append(f"\n  {side:3}  {printable(spec.name)}: {spec.describe()}")
        if len(specs) > 8:
            text.append(f"\n  {side:3}  and {len(specs) - 8} more")
    return text


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
