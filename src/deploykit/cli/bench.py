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
from deploykit.errors import UsageError
from deploykit.report import Report

_Budget = float | None


@command(example="deploykit bench model.onnx model.int8.onnx model.xml --batch 8 --threads 2 --max-p99-ms 20")
def bench(
    ui: Ui,
    artifacts: Annotated[
        list[Path] | None, typer.Argument(metavar="ARTIFACT", help="The artifacts, first the reference.")
    ] = None,
    url: Annotated[
        list[str] | None,
        typer.Option("--url", metavar="URL", help="A running KServe v2 server: http://HOST:PORT or grpc://HOST:PORT."),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="The server's model, where it has several.")
    ] = None,
    clients: Annotated[
        int, typer.Option("--clients", metavar="N", min=1, help="Clients that call the server at once.")
    ] = 1,
    data: DataOpt = None,
    batch: Annotated[int, typer.Option("--batch", metavar="N", min=1, help="Samples in one call.")] = 1,
    threads: Annotated[
        int | None, typer.Option("--threads", metavar="N", min=1, help="Threads in one call; the engine's choice.")
    ] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="S", min=0.1, help="Measured time for each artifact.")
    ] = 3.0,
    per_op: Annotated[
        bool, typer.Option("--per-op", help="The engine's own profile: time by kernel, operator and source module.")
    ] = False,
    eval: EvalOpt = None,
    metric: MetricOpt = None,
    label: LabelOpt = None,
    max_drop: Annotated[
        _Budget,
        typer.Option("--max-drop", metavar="X", min=0, help="Fail an accuracy lower by more, in the metric's unit."),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option("--baseline", metavar="FILE", help="Fail where slower than in this JSON report of bench."),
    ] = None,
    max_slowdown: Annotated[
        float,
        typer.Option(
            "--max-slowdown", metavar="X", min=1, max=100, help="How much slower than the baseline is allowed."
        ),
    ] = 1.1,
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
    """Measure artifacts and servers side by side, in fresh processes, in turns; exit 1 for a broken budget."""
    if not artifacts and not url:
        raise UsageError("bench needs an artifact, or --url", code="DK808", hint="deploykit bench model.onnx model.xml")
    for artifact in artifacts or ():
        arguments.artifact_file(artifact)
    data = arguments.data(data, "--data")
    eval = arguments.data(eval, "--eval")
    dims = arguments.dim_ranges(dim)
    with ui.progress() as progress:
        return deploykit.bench(
            *(artifacts or ()),
            url=url or (),
            name=name,
            clients=clients,
            data=data,
            batch=batch,
            threads=threads,
            seconds=seconds,
            per_op=per_op,
            eval=eval,
            metric=metric,
            label=label,
            max_drop=max_drop,
            baseline=arguments.optional_file(baseline, "baseline"),
            max_slowdown=max_slowdown,
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
