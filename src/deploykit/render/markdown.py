"""Markdown, as a job summary or a comment on a change shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deploykit.render.failure import printable
from deploykit.render.grouping import before_numbers, grouped
from deploykit.render.sections import sections
from deploykit.render.targets import blocks
from deploykit.report import finding_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deploykit.render.table import Section
    from deploykit.report import Finding, Report


_PLACES = 20  # of a finding that is told of more places, the JSON report has the rest


def render(report: Report) -> str:
    """Title with the status, the command's tables, findings as a list."""
    first, rest = before_numbers(report.findings)
    lines = [f"# deploykit {report.command}: {report.status}", ""]
    lines += [*_findings(first), ""] if first else []
    for section in sections(report):
        lines += _section(section)
    rest += [finding_of(report.error)] if report.error else []
    if rest:
        lines += ["## Findings", ""]
    for block in blocks(report, rest):
        lines += [f"### {_text(block.heading)}: {block.verdict}", ""] if block.heading else []
        lines += [*_findings(block.findings, targets=not block.heading), ""]
    return "\n".join(lines).rstrip() + "\n"


def _findings(findings: Iterable[Finding], *, targets: bool = True) -> list[str]:
    lines = []
    for group in grouped(findings):
        head = group.findings[0]
        lines.append(f"- **{head.severity} {head.code}**: {_text(group.message)}")
        places = group.places if targets else group.spots
        lines += [f"  - at {_text(place)}" for place in places[:_PLACES]]
        lines += [f"  - and {len(places) - _PLACES} more like it"] if len(places) > _PLACES else []
        lines += [f"  - hint: {_with_commands(hint)}" for hint in group.hints]
    return lines


def _section(section: Section) -> list[str]:
    lines = [f"## {section.title}", ""] if section.title else []
    if section.columns:
        lines.append("| " + " | ".join(_text(column) for column in section.columns) + " |")
        lines.append("|" + "|".join("--:" if column in section.numeric else "---" for column in section.columns) + "|")
        lines += ["| " + " | ".join(_text(cell) for cell in row) + " |" for row in section.rows]
        lines.append("")
    for line in section.lines:
        lines += [_text(line), ""]
    return lines


def _with_commands(hint: str) -> str:
    """A hint with its commands as code, which nothing inside of them can end."""
    texts = printable(hint).split("`")
    if len(texts) % 2 == 0:
        return _text(hint)
    return "".join(f"`{' '.join(text.split())}`" if at % 2 else _text(text) for at, text in enumerate(texts))


def _text(text: str) -> str:
    """Text that means itself: names out of a model must not become markup."""
    escaped = printable(text)
    for mark in "\\`*_[]<>|":
        escaped = escaped.replace(mark, f"\\{mark}")
    return " ".join(escaped.splitlines())
