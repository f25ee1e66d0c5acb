"""`deploykit bench`."""

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

_Budget = float | None


@command(example="deploykit bench model.onnx model.int8.onnx model.xml --batch 8 --threads 2 --max-p99-ms 20")
def bench(
    ui: Ui,
    artifacts: Annotated[list[Path], typer.Argument(metavar="ARTIFACT...", help="The artifacts, first the baseline.")],
    data: DataOpt = None,
    batch: Annotated[int, typer.Option("--batch", metavar="N", min=1, help="Samples in one call.")] = 1,
    threads: Annotated[
        int | None, typer.Option("--threads", metavar="N", min=1, help="Threads in one call; the engine's choice.")
    ] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="S", min=0.1, help="Measured time for each artifact.")
    ] = 3.0,
    eval: EvalOpt = None,
    metric: MetricOpt = None,
    label: LabelOpt = None,
    max_p99_ms: Annotated[
        _Budget, typer.Option("--max-p99-ms", metavar="X", min=0, help="Fail above this 99th percentile.")
    ] = None,
    min_throughput: Annotated[
        _Budget, typer.Option("--min-throughput", metavar="X", min=0, help="Fail below so many samples a second.")
    ] = None,
    max_size_mb: Annotated[
        _Budget, typer.Option("--max-size-mb", metavar="X", min=0, help="Fail above this size on disk.")
    ] = None,
    max_rss_mb: Annotated[
        _Budget, typer.Option("--max-rss-mb", metavar="X", min=0, help="Fail above this peak memory.")
    ] = None,
    device: DeviceOpt = "cpu",
    provider: ProviderOpt = None,
    custom_ops: CustomOpsOpt = None,
    dim: DimRangeOpt = None,
    seed: SeedOpt = 0,
) -> Report:
    """Measure artifacts side by side, each in a fresh process, runs interleaved; exit 1 when a budget is broken."""
    for artifact in artifacts:
        arguments.artifact_file(artifact)
    data = arguments.data(data, "--data")
    eval = arguments.data(eval, "--eval")
    dims = arguments.dim_ranges(dim)
    with ui.progress() as progress:
        return deploykit.bench(
            *artifacts,
            data=data,
            batch=batch,
            threads=threads,
            seconds=seconds,
            eval=eval,
            metric=metric,
            label=label,
            max_p99_ms=max_p99_ms,
            min_throughput=min_throughput,
            max_size_mb=max_size_mb,
            max_rss_mb=max_rss_mb,
            device=device,
            provider=provider,
            custom_ops=custom_ops,
            dims=dims,
            seed=seed,
            on_progress=progress,
        )


COMMAND = bench
