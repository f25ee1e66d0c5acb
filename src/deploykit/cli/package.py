"""`deploykit package`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

import deploykit
from deploykit import io
from deploykit.cli import arguments
from deploykit.cli.command import command
from deploykit.cli.options import DataOpt, SeedOpt
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
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="The folder to write, or a repository that gets one more model.",
            show_default=False,
        ),
    ],
    name: Annotated[
        str | None, typer.Option("--name", metavar="N", help="The model's name; the file's stem otherwise.")
    ] = None,
    max_batch: Annotated[
        int | None, typer.Option("--max-batch", metavar="N", min=1, help="Rows in one request, of a dynamic batch.")
    ] = None,
    data: DataOpt = None,
    seed: SeedOpt = 0,
) -> Report:
    """Lay an artifact out as a server loads it, and run it once from there."""
    arguments.artifact_file(artifact)
    data = arguments.data(data, "--data")
    if not output.is_dir():
        io.check_output(output, force=ui.force)
    with ui.progress() as progress:
        return deploykit.package(
            artifact,
            as_=as_,
            output=output,
            name=name,
            max_batch=max_batch,
            data=data,
            force=ui.force,
            seed=seed,
            on_progress=progress,
        )


COMMAND = package
