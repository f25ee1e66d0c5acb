"""`deploykit run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import deploykit
from deploykit import io
from deploykit import precision as precisions
from deploykit.cli import arguments
from deploykit.cli.command import command
from deploykit.cli.options import (
    ArgOpt,
    CalibOpt,
    CustomOpsOpt,
    DimRangeOpt,
    EvalOpt,
    InputOpt,
    MetricOpt,
    SampleOpt,
    SeedOpt,
    WeightsOpt,
    complete_target,
)
from deploykit.cli.ui import Ui
from deploykit.errors import UsageError
from deploykit.report import Report

# As in `deploykit.pipeline.plan` and `.config`, which are not imported before there is something to run.
STAGES = ("export", "simplify", "check", "quantize", "convert", "evaluate", "bench")
PRECISIONS = ("fp32", *precisions.PRECISIONS)


@command(example="deploykit run model.onnx --to openvino,tensorrt-rtx --precision int8 --calib data.npz")
def run(
    ui: Ui,
    source: Annotated[
        str, typer.Argument(metavar="CONFIG.yaml|SOURCE", help="A deploykit.yaml, or a model source with --to.")
    ],
    to: Annotated[
        list[str] | None,
        typer.Option(
            "--to",
            "--target",
            metavar="NAME[,NAME...]",
            help="The targets; of a configuration, only these.",
            autocompletion=complete_target,
        ),
    ] = None,
    precision: Annotated[
        list[str] | None,
        typer.Option("--precision", metavar="P[,P...]", help=f"The precisions, likewise: {', '.join(PRECISIONS)}."),
    ] = None,
    input: InputOpt = None,
    dim: DimRangeOpt = None,
    sample: SampleOpt = None,
    weights: WeightsOpt = None,
    arg: ArgOpt = None,
    custom_ops: CustomOpsOpt = None,
    calib: CalibOpt = None,
    eval: EvalOpt = None,
    metric: MetricOpt = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="The folder for everything; deploykit-out otherwise."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="STAGE",
            help=f"Only these stages and what they need: {', '.join(STAGES)}. Repeatable.",
            autocompletion=lambda incomplete: [stage for stage in STAGES if stage.startswith(incomplete)],
        ),
    ] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Redo everything.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and what is cached.")] = False,
    write_config: Annotated[
        Path | None,
        typer.Option("--write-config", metavar="FILE", help="Write a configuration that names what was chosen."),
    ] = None,
    seed: SeedOpt = 0,
) -> Report:
    """Run the whole chain, from export to bench, reusing what did not change, into one report."""
    configured = Path(source).suffix in (".yaml", ".yml")
    targets = arguments.many_targets(to) if to else []
    if configured:
        io.existing_file(Path(source), "configuration")
    else:
        arguments.source(source)
        if not targets:
            raise UsageError(
                "a model source needs targets",
                code="DK808",
                hint=f"deploykit run {source} --to onnxruntime,openvino, or: deploykit init {source}",
            )
    precisions = [name for text in precision or () for name in text.split(",") if name]
    for name in precisions:
        arguments.one_of(name, PRECISIONS, "--precision")
    for stage in only or ():
        arguments.one_of(stage, STAGES, "--only")
    if write_config is not None:
        io.check_output(write_config, force=ui.force)
    facts: dict[str, Any] = {
        "inputs": arguments.inputs(input),
        "dims": arguments.dim_ranges(dim),
        "sample": arguments.optional_file(sample, "sample file", ".npz"),
        "weights": arguments.optional_file(weights, "weights file", *arguments.WEIGHTS),
        "args": arguments.pairs(arg, "--arg"),
        "calib": arguments.data(calib, "--calib"),
        "eval": arguments.data(eval, "--eval"),
    }
    with ui.progress() as progress:
        return deploykit.run(
            source,
            to=tuple(targets),
            precision=tuple(precisions),
            **facts,
            metric=metric,
            custom_ops=custom_ops,
            output=output,
            only=tuple(only or ()),
            no_cache=no_cache,
            dry_run=dry_run,
            write_config=write_config,
            force=ui.force,
            seed=seed,
            on_progress=progress,
        )


COMMAND = run
