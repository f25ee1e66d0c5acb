"""`deploykit quantize`."""

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
    CalibOpt,
    DimRangeOpt,
    EvalOpt,
    LabelOpt,
    MetricOpt,
    ModelArg,
    OutOpt,
    SeedOpt,
    complete_target,
)
from deploykit.cli.ui import Ui
from deploykit.errors import UsageError
from deploykit.report import Report


@command(example="deploykit quantize model.onnx -o model.int8.onnx --precision int8 --calib images/ --target openvino")
def quantize(
    ui: Ui,
    model: ModelArg,
    output: OutOpt,
    precision: Annotated[
        precisions.Name,
        typer.Option("--precision", help="What to quantize to.", show_default=False),
    ],
    target: Annotated[
        str,
        typer.Option(
            "--target",
            "--to",
            metavar="NAME[@VERSION]",
            help="The target whose scheme is used.",
            autocompletion=complete_target,
        ),
    ] = "onnxruntime",
    calib: CalibOpt = None,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            metavar="METHOD",
            help=f"How ranges are taken from the calibration data: {', '.join(precisions.RANGE_METHODS)}; "
            f"for int4-weights how weights are rounded: {', '.join(precisions.ROUNDING_METHODS)}.",
            autocompletion=lambda: [*precisions.RANGE_METHODS, *precisions.ROUNDING_METHODS[1:]],
        ),
    ] = "auto",
    samples: Annotated[
        int | None,
        typer.Option("--samples", metavar="N", min=1, help="Calibration samples; all, at most 512, otherwise."),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option("--exclude", metavar="NODE_OR_OP", help="Leave a node or an op type in float. Repeatable."),
    ] = None,
    keep_io: Annotated[
        bool, typer.Option("--keep-io", help="Inputs and outputs keep their dtypes (casts are put behind them).")
    ] = False,
    ranges: Annotated[
        Path | None,
        typer.Option("--ranges", metavar="FILE", help="Reuse calibrated ranges from this file, or save them there."),
    ] = None,
    block_size: Annotated[
        int, typer.Option("--block-size", metavar="N", help="Weights that share a scale (int4-weights).")
    ] = 32,
    smooth_quant: Annotated[
        float | None,
        typer.Option("--smooth-quant", metavar="ALPHA", help="Move activation outliers into weights, 0 to 1 (int8)."),
    ] = None,
    bias_correction: Annotated[
        bool, typer.Option("--bias-correction", help="Shift biases by the error that calibration measures (int8).")
    ] = False,
    sensitivity: Annotated[
        bool, typer.Option("--sensitivity", help="Rank the nodes by what quantizing each costs (int8, mixed).")
    ] = False,
    max_drop: Annotated[
        float | None,
        typer.Option(
            "--max-drop",
            metavar="X",
            min=0,
            help="Lose at most X points of accuracy; int8 and mixed search for what to leave in float. Needs --eval.",
        ),
    ] = None,
    eval: EvalOpt = None,
    metric: MetricOpt = None,
    label: LabelOpt = None,
    dim: DimRangeOpt = None,
    seed: SeedOpt = 0,
) -> Report:
    """Quantize an ONNX model in the scheme of a target, and compare it with the original."""
    arguments.onnx_file(model)
    io.check_output(output, force=ui.force, suffix=".onnx")
    arguments.one_target(target)
    if max_drop is not None and eval is None:
        raise UsageError("--max-drop needs labelled data", code="DK808", hint="add --eval DATA --metric top1")
    facts: dict[str, Any] = {
        "calib": arguments.data(calib, "--calib"),
        "eval": arguments.data(eval, "--eval"),
        "ranges": ranges,
        "dims": arguments.dim_ranges(dim),
    }
    if precisions.requires_calibration(precision) and calib is None and (ranges is None or not ranges.exists()):
        raise UsageError(
            f"--precision {precision} needs calibration data",
            code="DK808",
            hint="add --calib DATA (a folder or file of typical inputs), or --calib random to try it without",
        )
    with ui.progress() as progress:
        return deploykit.quantize(
            model,
            output=output,
            precision=precision,
            target=target,
            method=method,
            samples=samples,
            exclude=tuple(exclude or ()),
            keep_io=keep_io,
            block_size=block_size,
            smooth_quant=smooth_quant,
            bias_correction=bias_correction,
            sensitivity=sensitivity,
            max_drop=max_drop,
            metric=metric,
            label=label,
            **facts,
            force=ui.force,
            seed=seed,
            on_progress=progress,
        )


COMMAND = quantize
