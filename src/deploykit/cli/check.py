"""`deploykit check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

import deploykit
from deploykit.cli import arguments
from deploykit.cli.command import command
from deploykit.cli.options import CustomOpsOpt, DimRangeOpt, ModelArg, SeedOpt, complete_targets_or_all
from deploykit.cli.ui import Ui
from deploykit.report import Report


@command(example="deploykit check model.onnx --target openvino,coreml")
def check(
    ui: Ui,
    model: ModelArg,
    target: Annotated[
        list[str],
        typer.Option(
            "--target",
            "--to",
            metavar="NAME[@VERSION]|all",
            help="The targets to check against. Repeatable, or separated by commas. all: each target in its default"
            " version, and every execution provider and backend of ONNX Runtime and ONNX Runtime Web.",
            autocompletion=complete_targets_or_all,
            show_default=False,
        ),
    ],
    dim: DimRangeOpt = None,
    probe: Annotated[
        bool,
        typer.Option(
            "--probe", help="Build and run each node alone that nobody is sure about, by the engines installed here."
        ),
    ] = False,
    save_nodes: Annotated[
        Path | None,
        typer.Option(
            "--save-nodes",
            metavar="DIR",
            help="Write each refused node as a small model with inputs, for a bug report.",
        ),
    ] = None,
    custom_ops: CustomOpsOpt = None,
    fix: Annotated[
        bool,
        typer.Option("--fix", help="Rewrite what the targets refuse; the result is proven equal before it is kept."),
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="OUT", help="The model that --fix writes.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --fix, in the place of -o: list the rewrites and what they give.")
    ] = False,
    seed: SeedOpt = 0,
    format: Annotated[
        Literal["table", "json", "markdown", "html", "sarif", "junit"],
        typer.Option("--format", help="How the result is shown on stdout."),
    ] = "table",
) -> Report:
    """List every problem a model has with each target, all at once; exit 1 when a named target does not run it."""
    arguments.onnx_file(model)
    targets = arguments.many_targets(target, all_allowed=True)
    dims = arguments.dim_ranges(dim)
    ui.format = format
    with ui.progress() as progress:
        return deploykit.check(
            model,
            targets=targets,
            dims=dims,
            probe=probe,
            save_nodes=save_nodes,
            custom_ops=custom_ops,
            fix=fix,
            output=output,
            dry_run=dry_run,
            force=ui.force,
            seed=seed,
            on_progress=progress,
        )


COMMAND = check
