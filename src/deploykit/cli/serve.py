"""`deploykit serve`."""

from __future__ import annotations

import atexit
import functools
import json
import logging
import os
import sys
import threading
from pathlib import Path
from typing import Annotated, Any

import typer

import deploykit
from deploykit.cli import arguments
from deploykit.cli.command import command
from deploykit.cli.options import CustomOpsOpt, DeviceOpt, ProviderOpt
from deploykit.cli.ui import Ui
from deploykit.errors import ExitCode
from deploykit.report import Report


@command(example="deploykit serve model.onnx --http-port 8000")
def serve(
    ui: Ui,
    artifact: Annotated[
        Path, typer.Argument(metavar="ARTIFACT_OR_REPOSITORY", help="The artifact, or a model repository.")
    ],
    name: Annotated[
        str | None, typer.Option("--name", metavar="N", help="The model's name; the file's stem otherwise.")
    ] = None,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="The address to listen on.")] = "127.0.0.1",
    http_port: Annotated[
        int, typer.Option("--http-port", metavar="PORT", min=0, max=65535, help="The port; 0 picks a free one.")
    ] = 8000,
    grpc_port: Annotated[
        int | None,
        typer.Option(
            "--grpc-port",
            metavar="PORT",
            min=0,
            max=65535,
            help="The port for gRPC; 8001 otherwise, or a free one beside --http-port 0.",
        ),
    ] = None,
    no_grpc: Annotated[bool, typer.Option("--no-grpc", help="Serve HTTP alone.")] = False,
    max_body_mb: Annotated[
        float, typer.Option("--max-body-mb", metavar="N", min=0.001, help="Refuse larger requests.")
    ] = 64.0,
    max_batch: Annotated[
        int | None,
        typer.Option(
            "--max-batch",
            metavar="N",
            min=1,
            help="Rows of waiting requests that one call of the engine computes; without it where a trial shows gain.",
        ),
    ] = None,
    max_delay_ms: Annotated[
        float,
        typer.Option("--max-delay-ms", metavar="MS", min=0.0, max=60_000.0, help="Wait so long for a fuller batch."),
    ] = 0.0,
    instances: Annotated[
        int | None,
        typer.Option("--instances", metavar="N", min=1, max=64, help="Calls of the engine at the same time."),
    ] = None,
    reload: Annotated[
        float | None,
        typer.Option("--reload", metavar="SECONDS", min=0.1, help="Look so often for new versions in the repository."),
    ] = None,
    repository_control: Annotated[
        bool, typer.Option("--repository-control", help="Let clients list, load and unload the repository's models.")
    ] = False,
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", metavar="FILE", help="Answer only requests with the token in this file."),
    ] = None,
    calib: Annotated[
        str | None,
        typer.Option("--calib", metavar="DATA", help="Compare the inputs of requests with this data, in the metrics."),
    ] = None,
    device: DeviceOpt = "cpu",
    provider: ProviderOpt = None,
    custom_ops: CustomOpsOpt = None,
) -> Report:
    """Serve an artifact over HTTP and gRPC (KServe v2); prints one JSON line when ready and stops on Ctrl-C."""
    arguments.servable(artifact)

    def ready(facts: dict[str, Any]) -> None:
        ui.result_shown = True  # stdout is this line's; a script waits for it
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()

    call = functools.partial(
        deploykit.serve,
        artifact,
        name=name,
        host=host,
        http_port=http_port,
        grpc_port=grpc_port,
        grpc=not no_grpc,
        max_body_mb=max_body_mb,
        max_batch=max_batch,
        max_delay_ms=max_delay_ms,
        instances=instances,
        reload_seconds=reload,
        repository_control=repository_control,
        token_file=token_file,
        calib=arguments.data(calib, "--calib"),
        device=device,
        provider=provider,
        custom_ops=custom_ops,
        log_level=logging.WARNING if ui.quiet else logging.DEBUG if ui.verbose else logging.INFO,
        on_ready=ready,
    )
    try:
        report = call()
    except KeyboardInterrupt:
        _leave_engines(ExitCode.INTERRUPTED)
        raise
    _leave_engines(ExitCode.GATE_FAILED if ui.strict and report.findings else ExitCode.OK)
    return report


def _leave_engines(code: ExitCode) -> None:
    """An engine that still computes or loads aborts the process when the interpreter ends under it: end it first."""
    from deploykit.serving.lanes import THREAD_PREFIX

    if any(thread.name.startswith(THREAD_PREFIX) for thread in threading.enumerate()):
        atexit.register(os._exit, int(code))


COMMAND = serve
