"""`deploykit serve`: an artifact behind the Open Inference Protocol (KServe v2)."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from deploykit import graph, lazy
from deploykit.api.extensions import extension_libraries
from deploykit.api.validate import described
from deploykit.comparison import require_runnable, why_not_runnable
from deploykit.report import Report, warning
from deploykit.runtime import RuntimeOptions
from deploykit.serving import repository
from deploykit.target import format_of, require_packages, target_of_format

if TYPE_CHECKING:
    from collections.abc import Callable

    from deploykit.api.extensions import CustomOps

GRPC_PORT = 8001
_MEGABYTE = 1 << 20


def serve(
    artifact: str | Path,
    *,
    name: str | None = None,
    host: str = "127.0.0.1",
    http_port: int = 8000,
    grpc_port: int | None = None,
    grpc: bool = True,
    max_body_mb: float = 64.0,
    max_batch: int | None = None,
    max_delay_ms: float = 0.0,
    instances: int | None = None,
    device: Literal["cpu", "gpu", "npu", "all"] = "cpu",
    provider: str | None = None,
    custom_ops: CustomOps = None,
    log_level: int = logging.INFO,
    on_ready: Callable[[dict[str, Any]], None] | None = None,
) -> Report:
    """Serves an artifact over HTTP and gRPC until SIGINT, SIGTERM, or an error while loading; blocks.

    artifact: a file of any format that runs here, or a model repository with one model (its newest version).
    name: of the model; the file's stem, or the folder's name, otherwise. http_port, grpc_port: 0 picks a free
    one; grpc_port is 8001 when not given, or a free one beside a free http_port. grpc: False serves HTTP alone.
    custom_ops: the engine's extension library, see `extensions.extension_libraries`.
    max_body_mb: megabytes (2**20 bytes) of a request. max_batch: rows of requests computed in one call of the engine;
    1 computes each alone; None batches where a trial while loading shows that it pays. max_delay_ms: milliseconds that
    a request may wait for others. instances: calls of the engine at the same time; None chooses.
    log_level: of the JSON lines on stderr.
    on_ready: called once, from another thread, with {"ready": true, "http": port, "grpc": port, "models": [name]}.
    Returns a report with metrics {"model", "version", "engine", "lanes", "threads", "max_batch"}; requests that had to
    be cut off while the server stopped are a warning (DK707), and so is a batch size that the model cannot have
    (DK724).
    Raises UsageError (DK701 port, DK702 host, DK703 name), UnavailableError when the artifact cannot run here,
    MissingDependencyError without the `serve` extra, and what loading the artifact raises.
    """
    started = time.perf_counter()
    path, model_name, version = _resolve(Path(artifact), name)
    modules = ["starlette", "uvicorn", "httptools", "prometheus_client"]
    for module in [*modules, *(["grpc", "tritonclient"] if grpc else [])]:
        lazy.require(module, "serve", purpose="deploykit serve")
    require_engine(path)
    libraries = extension_libraries(custom_ops, [target_of_format(format_of(path) or "")])
    options = RuntimeOptions(device=device, provider=provider, custom_ops=libraries)
    from deploykit.serving.batching import BatchPolicy
    from deploykit.serving.dataplane import DataPlane
    from deploykit.serving.inference import Limits
    from deploykit.serving.logs import json_logs
    from deploykit.serving.model import Model
    from deploykit.serving.server import Server, listen

    bound = listen(host, http_port)
    with json_logs(log_level):
        policy = None if max_batch is None else BatchPolicy(max_batch, max_delay_ms / 1e3)
        model = Model(path, name=model_name, version=version, options=options, batching=policy, instances=instances)
        limits = Limits(max_body=int(max_body_mb * _MEGABYTE))
        port = (GRPC_PORT if http_port else 0) if grpc_port is None else grpc_port
        server = Server(DataPlane([model]), bound, limits, (host, port) if grpc else None)

        def ready() -> None:
            if on_ready is not None:
                ports = {"http": server.port, "grpc": server.grpc_port}
                on_ready({"ready": True, **ports, "models": [model_name]})

        cut_off = server.run(ready)
    report = Report(
        "serve",
        metrics={
            "model": model_name,
            "version": version,
            "engine": model.engine,
            "lanes": model.capacity.lanes,
            "threads": model.capacity.threads,
            "max_batch": model.policy.max_rows,
        },
        seconds=time.perf_counter() - started,
    )
    if max_batch is not None and max_batch > 1 and model.alone_because is not None:
        report.add(warning("DK724", f"--max-batch {max_batch} was not used: {model.alone_because}"))
    if cut_off:
        report.add(warning("DK707", f"{cut_off} requests did not end in time and were cut off when the server stopped"))
    return report


def require_engine(path: Path) -> None:
    """Raises UnavailableError or MissingDependencyError when the artifact's engine is not here; imports no engine.

    A broken file is refused as such first: it would be no better where the engine is.
    """
    if why_not_runnable(path) is not None:
        described(path)
    require_runnable(path)
    target = target_of_format(format_of(path) or "")
    if target is None:
        return  # open_runtime refuses it with the formats that are known
    require_packages(target, f"{target.title} artifacts")


def _resolve(artifact: Path, name: str | None) -> tuple[Path, str, str]:
    """The file to load, the model's name and version."""
    if artifact.is_dir() and format_of(artifact) is None:
        found = repository.find(artifact)
        path, default, version = found.path, found.name, found.version
    else:
        path, default, version = artifact, artifact.stem, "1"
    if path.suffix == ".onnx":
        graph.check_file(path)
    chosen = default if name is None else name
    repository.check_name(chosen)
    return path, chosen, version
