"""`deploykit export`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

import deploykit
from deploykit import io
from deploykit.cli import arguments
from deploykit.cli.command import command
from deploykit.cli.options import (
    ArgOpt,
    DimRangeOpt,
    InputOpt,
    OutOpt,
    SampleOpt,
    SeedOpt,
    SourceArg,
    TrustOpt,
    WeightsOpt,
)
from deploykit.cli.ui import Ui
from deploykit.report import Report


@command(
    example="deploykit export model.py:Net --weights net.safetensors"
    " --input 'x:float32[batch,3,224,224]' --dim batch=1..64 -o net.onnx"
)
def export(
    ui: Ui,
    source: SourceArg,
    output: OutOpt,
    input: InputOpt = None,
    dim: DimRangeOpt = None,
    sample: SampleOpt = None,
    weights: WeightsOpt = None,
    arg: ArgOpt = None,
    opset: Annotated[
        int | None, typer.Option("--opset", metavar="N", min=7, help="ONNX opset; the exporter's default otherwise.")
    ] = None,
    exporter: Annotated[
        Literal["auto", "dynamo", "torchscript"], typer.Option("--exporter", help="How PyTorch models are captured.")
    ] = "auto",
    signature: Annotated[
        str | None,
        typer.Option("--signature", metavar="NAME", help="Entry point of a SavedModel or .tflite that has several."),
    ] = None,
    layout: Annotated[
        list[str] | None,
        typer.Option("--layout", metavar="[NAME=]nchw|nhwc", help="Of image tensors of TensorFlow models. Repeatable."),
    ] = None,
    custom_ops: Annotated[
        list[str] | None,
        typer.Option(
            "--custom-ops",
            metavar="FILE",
            help="A .py with TRANSLATIONS of PyTorch operators, or onnxruntime's extension library. Repeatable.",
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            metavar="NAME",
            help="What a Hugging Face folder is exported for; its configuration tells otherwise.",
        ),
    ] = None,
    trust: TrustOpt = False,
    seed: SeedOpt = 0,
) -> Report:
    """Export a model source to ONNX and prove that the file computes what the source computes."""
    arguments.source(source, trust=trust)
    io.check_output(output, force=ui.force, suffix=".onnx")
    facts: dict[str, Any] = {
        "inputs": arguments.inputs(input),
        "dims": arguments.dim_ranges(dim),
        "sample": arguments.optional_file(sample, "sample file", ".npz"),
        "weights": arguments.optional_file(weights, "weights file", *arguments.WEIGHTS),
        "args": arguments.pairs(arg, "--arg"),
    }
    with ui.progress() as progress:
        return deploykit.export(
            source,
            output=output,
            **facts,
            opset=opset,
            exporter=exporter,
            signature=signature,
            task=task,
            layout=layout or (),
            custom_ops=custom_ops,
            trust=trust,
            force=ui.force,
            seed=seed,
            on_progress=progress,
        )


COMMAND = export
