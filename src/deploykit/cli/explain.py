"""`deploykit explain`."""

from __future__ import annotations

from typing import Annotated

import typer

import deploykit
from deploykit.cli.command import command
from deploykit.cli.options import complete_code
from deploykit.cli.ui import Ui
from deploykit.report import Report


@command(example="deploykit explain DK312")
def explain(
    ui: Ui,
    code: Annotated[
        str | None,
        typer.Argument(metavar="CODE", help="An error code; all are listed without one.", autocompletion=complete_code),
    ] = None,
) -> Report:
    """Explain an error code: what it means, why it happens, what to do."""
    return deploykit.explain(code)


COMMAND = explain
