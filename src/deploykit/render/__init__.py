"""Renderings of a Report, one file a format; `render` finds the format's module when it is asked for."""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING

from deploykit.errors import UsageError

if TYPE_CHECKING:
    from deploykit.report import Report

# Format -> the module whose `render(report) -> str` writes it.
FORMATS: dict[str, str] = {
    "table": "deploykit.render.terminal",
    "json": "deploykit.render.json",
    "markdown": "deploykit.render.markdown",
    "html": "deploykit.render.html",
    "junit": "deploykit.render.junit",
    "sarif": "deploykit.render.sarif",
}

# Suffix of a report file -> format.
SUFFIXES: dict[str, str] = {".json": "json", ".html": "html", ".md": "markdown", ".xml": "junit", ".sarif": "sarif"}


def render(report: Report, format: str) -> str:
    """The report in a format of `FORMATS`, as text that ends in a newline.

    Raises UsageError (DK807) for an unknown format.
    """
    if format not in FORMATS:
        near = difflib.get_close_matches(format, FORMATS, n=1)
        raise UsageError(
            f"there is no report format {format!r}",
            code="DK807",
            context=[f"formats: {', '.join(FORMATS)}"],
            hint=f"did you mean {near[0]!r}?" if near else "",
        )
    text: str = importlib.import_module(FORMATS[format]).render(report)
    return text
