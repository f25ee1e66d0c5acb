"""Options and arguments that several commands share, each written once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def complete_target(incomplete: str) -> list[str]:
    """Target names that continue what was typed; after a comma, the next one of a list."""
    from deploykit.target import target_names

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in target_names() if name.startswith(last)]


def complete_targets_or_all(incomplete: str) -> list[str]:
    """As `complete_target`, and `all`."""
    return [*complete_target(incomplete), *(["all"] if "all".startswith(incomplete) else [])]


def complete_code(incomplete: str) -> list[tuple[str, str]]:
    """Error codes with their titles."""
    from deploykit.explanations import load

    return [(code, entry.title) for code, entry in load().items() if code.startswith(incomplete.upper())]


def complete_report(incomplete: str) -> list[str]:
    """The file name with each suffix that has a format."""
    from deploykit.render import SUFFIXES

    return [f"{incomplete.partition('.')[0]}{suffix}" for suffix in SUFFIXES] if incomplete else []


def _file(metavar: str, help: str) -> typer.models.ArgumentInfo:
    argument: typer.models.ArgumentInfo = typer.Argument(metavar=metavar, help=help, show_default=False)
    return argument


ModelArg = Annotated[Path, _file("MODEL", "An ONNX file.")]
FileArg = Annotated[Path, _file("FILE", "Any model file or artifact.")]
SourceArg = Annotated[
    str,
    _file(
        "SOURCE",
        "model.onnx, model.pt2, TorchScript model.pt, a SavedModel folder, .keras, .h5, .tflite, .skops, or"
        " package.module:factory / path/file.py:factory.",
    ),
]
OutOpt = Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="The file to write.", show_default=False)]

InputOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="NAME:DTYPE[DIMS]",
        help="An input, as in 'x:float32[batch,3,224,224]'; a name is a symbolic dimension. Repeatable.",
    ),
]
DimRangeOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--dim",
        metavar="NAME=MIN..[MAX]",
        help="Bounds of a symbolic dimension: batch=1..64, or its sizes: batch=1,8. Repeatable.",
    ),
]
DimValueOpt = Annotated[
    list[str] | None,
    typer.Option("--dim", metavar="NAME=VALUE", help="Fix a symbolic dimension: batch=1. Repeatable."),
]
SampleOpt = Annotated[
    Path | None, typer.Option("--sample", metavar="FILE.npz", help="Example inputs: names, dtypes, shapes.")
]
WeightsOpt = Annotated[
    Path | None,
    typer.Option("--weights", metavar="FILE", help="Weights for a factory: .safetensors, or .pt read as weights only."),
]
ArgOpt = Annotated[
    list[str] | None, typer.Option("--arg", metavar="K=V", help="Keyword argument of the factory. Repeatable.")
]
TrustOpt = Annotated[
    bool,
    typer.Option(
        "--trust", help="Load what can run code from the file: a pickle of your own, unknown types in .skops."
    ),
]
TargetOpt = Annotated[
    str,
    typer.Option(
        "--to",
        "--target",
        metavar="NAME[@VERSION]",
        help="The target; `deploykit targets` lists them.",
        autocompletion=complete_target,
        show_default=False,
    ),
]
DataOpt = Annotated[
    str | None,
    typer.Option("--data", metavar="DATA", help="Inputs: .npz, .npy, folder, table, module:callable, random[:SEED]."),
]
CalibOpt = Annotated[str | None, typer.Option("--calib", metavar="DATA", help="Calibration data, as for --data.")]
EvalOpt = Annotated[str | None, typer.Option("--eval", metavar="DATA", help="Labelled data to measure accuracy on.")]
MetricOpt = Annotated[
    str | None,
    typer.Option("--metric", metavar="NAME|module:function", help="The accuracy metric: top1, f1, cer, map, miou, ..."),
]
LabelOpt = Annotated[
    str | None, typer.Option("--label", metavar="NAME", help="The array or column that holds the labels; y otherwise.")
]
SeedOpt = Annotated[int, typer.Option("--seed", metavar="N", help="Seed of everything random.")]
DeviceOpt = Annotated[
    Literal["cpu", "gpu", "npu", "all"],
    typer.Option("--device", help="The device that runs the artifact; all: Core ML chooses."),
]
CustomOpsOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--custom-ops",
        metavar="[TARGET=]FILE",
        help="The target's extension library with the custom operators; its code is run. Repeatable.",
    ),
]
ProviderOpt = Annotated[
    str | None,
    typer.Option(
        "--provider",
        metavar="NAME[:K=V,...]",
        help="Execution provider of onnxruntime, with its options; node or chromium[-BACKEND] of onnxruntime-web.",
    ),
]
