"""HTML: one self-contained page, no scripts and no outside resources, that a person likes to read."""

from __future__ import annotations

import functools
import importlib.resources
from typing import TYPE_CHECKING, Any

from deploykit.render.failure import printable
from deploykit.render.grouping import before_numbers, grouped
from deploykit.render.plot import scatter
from deploykit.render.quantization import bars
from deploykit.render.sections import sections
from deploykit.render.targets import blocks
from deploykit.report import finding_of
from deploykit.version import __version__

if TYPE_CHECKING:
    from jinja2 import Template

    from deploykit.report import Report

_CELLS = {
    "passed": "good",
    "runs whole": "good",
    "does not run": "bad",
    "runs elsewhere": "warn",
    "unknown": "warn",
    "yes": "good",
    "installed": "good",
    "real": "good",
    "FAILED": "bad",
    "ERROR": "bad",
    "SKIPPED": "warn",
    "only built": "quiet",
    "simulated": "warn",
    "no": "quiet",
    "-": "quiet",
}


def render(report: Report) -> str:
    """The page; names out of models are escaped."""
    findings = [*report.findings, *([finding_of(report.error)] if report.error else [])]
    first, rest = before_numbers(findings)
    page: str = _template().render(
        report=report,
        version=__version__,
        sections=sections(report),
        first=grouped(first),
        blocks=[
            {
                "heading": block.heading,
                "verdict": block.verdict,
                "groups": grouped(finding for finding in block.findings if finding.severity != "note"),
                "notes": grouped(finding for finding in block.findings if finding.severity == "note"),
            }
            for block in blocks(report, rest)
        ],
        counts={name: sum(f.severity == name for f in findings) for name in ("error", "warning", "note")},
        text=printable,
        cells=_CELLS,
        plot=scatter(report.metrics.get("rows", [])),
        bars=bars(report.metrics.get("sensitivity", [])),
        summary=_summary(report),
    )
    return page + "\n"


@functools.cache
def _template() -> Template:
    import jinja2

    source = importlib.resources.files("deploykit.render").joinpath("report.html.j2").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string(source)


def _summary(report: Report) -> str:
    """One sentence on the whole."""
    rows: list[dict[str, Any]] = report.metrics.get("rows", []) if report.command == "run" else []
    if not rows:
        return ""
    passed = sum(row.get("status") == "passed" for row in rows)
    made = [row.get("execution") for row in rows if row.get("artifact")]
    ran, simulated, built = (made.count(kind) for kind in ("real", "simulated", "none"))
    return (
        f"{passed} of {len(rows)} artifacts passed; {ran} were run on their real engine on this machine,"
        f" {simulated} simulated, {built} only built."
    )
