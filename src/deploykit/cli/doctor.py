"""`deploykit doctor`."""

from __future__ import annotations

from typing import Annotated

import typer

import deploykit
from deploykit.cli.command import command
from deploykit.cli.ui import Ui
from deploykit.environments import ENVIRONMENTS
from deploykit.report import Report

_NAMES = ", ".join(ENVIRONMENTS)


@command(example="deploykit doctor --install onnx2tf")
def doctor(
    ui: Ui,
    install: Annotated[
        str | None,
        typer.Option("--install", metavar="NAME", help=f"Make a managed environment, pinned, with pip: {_NAMES}."),
    ] = None,
    remove: Annotated[
        str | None, typer.Option("--remove", metavar="NAME", help="Delete a managed environment.")
    ] = None,
) -> Report:
    """Show versions, extras, managed environments, CPU features and drivers, and what installs the missing."""
    with ui.progress() as progress:
        return deploykit.doctor(install=install, remove=remove, force=ui.force, on_progress=progress)


COMMAND = doctor
