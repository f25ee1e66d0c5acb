"""`deploykit validate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import deploykit
from deploykit.cli import arguments
from deploykit.cli.command import command
from deploykit.cli.options import (
    CustomOpsOpt,
    DataOpt,
    DeviceOpt,
    DimRangeOpt,
    EvalOpt,
    LabelOpt,
    MetricOpt,
    ProviderOpt,
    SeedOpt,
)
from deploykit.cli.ui import Ui
from deploykit.report import Report


@command(example="deploykit validate model.onnx model.xml --data test.npz --locate")
def validate(
    ui: Ui,
    reference: Annotated[Path, typer.Argument(metavar="REFERENCE", help="The artifact that is right.")],
    candidate: Annotated[Path, typer.Argument(metavar="CANDIDATE", help="The artifact to compare with it.")],
    data: DataOpt = None,
    samples: Annotated[int, typer.Option("--samples", metavar="N", min=1, help="Samples to compare on.")] = 16,
    rtol: Annotated[
        float | None, typer.Option("--rtol", metavar="R", min=0, help="Relative tolerance, not the precision's own.")
    ] = None,
    atol: Annotated[
        float | None, typer.Option("--atol", metavar="A", min=0, help="Absolute tolerance, not the precision's own.")
    ] = None,
    min_sqnr: Annotated[
        float | None, typer.Option("--min-sqnr", metavar="DB", help="Least signal to noise ratio in dB.")
    ] = None,
    eval: EvalOpt = None,
    metric: MetricOpt = None,
    label: LabelOpt = None,
    device: DeviceOpt = "cpu",
    provider: ProviderOpt = None,
    custom_ops: CustomOpsOpt = None,
    dim: DimRangeOpt = None,
    seed: SeedOpt = 0,
    locate: Annotated[
        bool, typer.Option("--locate", help="Search for the first inner tensor that differs, and name its node.")
    ] = False,
    save_repro: Annotated[
        Path | None,
        typer.Option("--save-repro", metavar="SUB.onnx", help="Locate, and save the part that fails with its inputs."),
    ] = None,
) -> Report:
    """Compare two artifacts on the same inputs; exit 1 when they differ beyond the tolerance of their precision."""
    arguments.artifact_file(reference, "reference")
    arguments.artifact_file(candidate, "candidate")
    data = arguments.data(data, "--data")
    eval = arguments.data(eval, "--eval")
    dims = arguments.dim_ranges(dim)
    with ui.progress() as progress:
        return deploykit.validate(
            reference,
            candidate,
            data=data,
            samples=samples,
            rtol=rtol,
            atol=atol,
            min_sqnr=min_sqnr,
            eval=eval,
            metric=metric,
            label=label,
            device=device,
            provider=provider,
            custom_ops=custom_ops,
            dims=dims,
            seed=seed,
            locate=locate,
            save_repro=save_repro,
            force=ui.force,
            on_progress=progress,
        )


COMMAND = validate
