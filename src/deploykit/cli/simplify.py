"""`deploykit simplify`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

import deploykit
from deploykit import io
from deploykit.cli import arguments
from deploykit.cli.command import command
from deploykit.cli.options import DimValueOpt, ModelArg, OutOpt, SeedOpt
from deploykit.cli.ui import Ui
from deploykit.report import Report


@command(example="deploykit simplify model.onnx -o simple.onnx --dim batch=1")
def simplify(
    ui: Ui,
    model: ModelArg,
    output: OutOpt,
    engine: Annotated[
        Literal["auto", "native", "onnxsim", "onnxslim"], typer.Option("--engine", help="What simplifies.")
    ] = "auto",
    max_growth: Annotated[
        float,
        typer.Option(
            "--max-growth",
            metavar="X",
            min=1.0,
            help="Refuse a file larger than X times the original and by over 4 KiB.",
        ),
    ] = 1.05,
    dim: DimValueOpt = None,
    fuse: Annotated[
        bool,
        typer.Option("--fuse", help="Also fuse transformer parts into onnxruntime's own operators (runs only there)."),
    ] = False,
    seed: SeedOpt = 0,
) -> Report:
    """Simplify an ONNX model; its outputs are compared with the original's before it is written."""
    arguments.onnx_file(model)
    io.check_output(output, force=ui.force, suffix=".onnx")
    dims = arguments.dim_values(dim)
    with ui.progress() as progress:
        return deploykit.simplify(
            model,
            output=output,
            engine=engine,
            max_growth=max_growth,
            dims=dims,
            fuse=fuse,
            force=ui.force,
            seed=seed,
            on_progress=progress,
        )


COMMAND = simplify
