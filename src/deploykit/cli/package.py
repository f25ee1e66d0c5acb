"""`deploykit package`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

import deploykit
from deploykit import io
from deploykit.cli import arguments
from deploykit.cli.command import command
from deploykit.cli.ui import Ui
from deploykit.report import Report


@command(example="deploykit package model.onnx --as repository -o models/")
def package(
    ui: Ui,
    artifact: Annotated[Path, typer.Argument(metavar="ARTIFACT", help="The artifact to lay out.")],
    as_: Annotated[
        Literal["repository"], typer.Option("--as", help="The layout: a model repository.", show_default=False)
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="The folder to write.", show_default=False)
    ],
) -> Report:
    """Lay an artifact out as a server loads it."""
    arguments.artifact_file(artifact)
    io.check_output(output, force=ui.force)
    return deploykit.package(artifact, as_=as_, output=output, force=ui.force)


COMMAND = package
