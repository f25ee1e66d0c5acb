"""`deploykit convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import deploykit
from deploykit import io
from deploykit.bundling import output_path
from deploykit.cli import arguments
from deploykit.cli.command import command
from deploykit.cli.options import (
    ArgOpt,
    CalibOpt,
    CustomOpsOpt,
    DataOpt,
    DimRangeOpt,
    InputOpt,
    OutOpt,
    SampleOpt,
    SeedOpt,
    SourceArg,
    TargetOpt,
    WeightsOpt,
)
from deploykit.cli.ui import Ui
from deploykit.report import Report
from deploykit.target import check_options, parse_target, require_converter


@command(example="deploykit convert model.onnx --to openvino -o model.xml --data test.npz")
def convert(
    ui: Ui,
    source: SourceArg,
    to: TargetOpt,
    output: OutOpt,
    input: InputOpt = None,
    dim: DimRangeOpt = None,
    sample: SampleOpt = None,
    weights: WeightsOpt = None,
    arg: ArgOpt = None,
    profile: Annotated[
        list[str] | None,
        typer.Option(
            "--profile",
            metavar="INPUT=MIN:OPT:MAX",
            help="Optimization profile: x=1x3x224x224:8x3x224x224:64x3x224x224. Repeatable: an input that is named "
            "again has these shapes in the next profile.",
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="K=V", help="Option of the target; an unknown one lists them. Repeatable."),
    ] = None,
    data: DataOpt = None,
    calib: CalibOpt = None,
    samples: Annotated[int, typer.Option("--samples", metavar="N", min=1, help="Samples to compare on.")] = 16,
    reference: Annotated[
        Path | None,
        typer.Option("--reference", metavar="FLOAT.onnx", help="The float model that a quantized one was made from."),
    ] = None,
    custom_ops: CustomOpsOpt = None,
    seed: SeedOpt = 0,
) -> Report:
    """Convert to a target's own format, and compare the result with its ONNX parent and its float source."""
    target, version = parse_target(to)
    require_converter(target, version)
    arguments.source(source)
    options = arguments.pairs(option, "--option")
    check_options(target, options)
    place, suffix = output_path(target, output, options)
    io.check_output(place, force=ui.force, suffix=suffix)
    facts: dict[str, Any] = {
        "inputs": arguments.inputs(input),
        "dims": arguments.dim_ranges(dim),
        "sample": arguments.optional_file(sample, "sample file", ".npz"),
        "weights": arguments.optional_file(weights, "weights file", *arguments.WEIGHTS),
        "args": arguments.pairs(arg, "--arg"),
        "profiles": arguments.profiles(profile),
        "data": arguments.data(data, "--data"),
        "calib": arguments.data(calib, "--calib"),
        "reference": reference if reference is None else arguments.onnx_file(reference, "reference model"),
    }
    with ui.progress() as progress:
        return deploykit.convert(
            source,
            to=to,
            output=output,
            options=options,
            samples=samples,
            custom_ops=custom_ops,
            **facts,
            force=ui.force,
            seed=seed,
            on_progress=progress,
        )


COMMAND = convert
