"""`deploykit init`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import deploykit
from deploykit import io
from deploykit.cli import arguments
from deploykit.cli.command import command
from deploykit.cli.options import SourceArg
from deploykit.cli.ui import Ui
from deploykit.report import Report


@command(example="deploykit init model.onnx")
def init(
    ui: Ui,
    model: SourceArg,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The configuration to write.")] = Path(
        "deploykit.yaml"
    ),
) -> Report:
    """Write a starter deploykit.yaml from a model's inputs."""
    arguments.source(model)
    io.check_output(output, force=ui.force)
    return deploykit.init(model, output=output, force=ui.force)


COMMAND = init
