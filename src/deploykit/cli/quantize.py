"""`deploykit quantize`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import deploykit
from deploykit import io
from deploykit.cli import arguments
from deploykit.cli.command import command
from deploykit.cli.options import CalibOpt, DimRangeOpt, EvalOpt, MetricOpt, ModelArg, OutOpt, SeedOpt, complete_target
from deploykit.cli.ui import Ui
from deploykit.errors import UsageError
from deploykit.report import Report


@command(example="deploykit quantize model.onnx -o model.int8.onnx --precision int8 --calib images/ --target openvino")
def quantize(
    ui: Ui,
    model: ModelArg,
    output: OutOpt,
    precision: Annotated[
        Literal["int8", "int8-weights", "fp16"],
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
        Literal["auto", "minmax", "percentile", "entropy", "mse"],
        typer.Option("--method", help="How ranges are taken from the calibration data."),
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
    max_drop: Annotated[
        float | None,
        typer.Option("--max-drop", metavar="X", min=0, help="Fail when accuracy drops by more points; needs --eval."),
    ] = None,
    eval: EvalOpt = None,
    metric: MetricOpt = None,
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
    if precision == "int8" and calib is None and (ranges is None or not ranges.exists()):
        raise UsageError(
            "--precision int8 needs calibration data",
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
            max_drop=max_drop,
            metric=metric,
            **facts,
            force=ui.force,
            seed=seed,
            on_progress=progress,
        )


COMMAND = quantize
