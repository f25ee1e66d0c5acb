"""`deploykit serve`: an artifact behind the Open Inference Protocol (KServe v2)."""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from deploykit import graph, lazy
from deploykit.api.extensions import extension_libraries
from deploykit.api.validate import described
from deploykit.comparison import require_runnable, why_not_runnable
from deploykit.errors import UsageError
from deploykit.report import Report, warning
from deploykit.runtime import RuntimeOptions
from deploykit.serving import repository
from deploykit.serving.access import read_token
from deploykit.target import format_of, require_packages, target_of_format

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from deploykit.api.extensions import CustomOps
    from deploykit.serving.model import Model
    from deploykit.serving.repository import Entry

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
    reload_seconds: float | None = None,
    repository_control: bool = False,
    token_file: str | Path | None = None,
    calib: str | Path | None = None,
    log_level: int = logging.INFO,
    on_ready: Callable[[dict[str, Any]], None] | None = None,
) -> Report:
    """Serves an artifact over HTTP and gRPC until SIGINT, SIGTERM, or an error while loading; blocks.

    artifact: a file of any format that runs here, or a model repository: every model, in the versions that its
    config.pbtxt chooses (the newest otherwise).
    name: of the model; the file's stem, or the folder's name, otherwise. http_port, grpc_port: 0 picks a free
    one; grpc_port is 8001 when not given, or a free one beside a free http_port. grpc: False serves HTTP alone.
    custom_ops: the engine's extension library, see `extensions.extension_libraries`.
    max_body_mb: megabytes (2**20 bytes) of a request. max_batch: rows of requests computed in one call of the engine;
    1 computes each alone; None batches where a trial while loading shows that it pays. max_delay_ms: milliseconds that
    a request may wait for others. instances: calls of the engine at the same time; None chooses.
    reload_seconds: how often to look for new, changed and removed versions in the repository; None: never.
    repository_control: let clients list, load and unload its models. token_file: file with the token that clients
    must bring (Authorization: Bearer); health needs none. calib: DATA that the inputs of requests are compared
    with, in the metrics. log_level: of the JSON lines on stderr.
    on_ready: called once, from another thread, with {"ready": true, "http": port, "grpc": port, "models": [name]}.
    Returns a report with metrics {"model", "version", "engine", "lanes", "threads", "max_batch"} of the first model,
    and "models" with those of all; requests that had to be cut off while the server stopped are a warning (DK707), and
    so is a batch size that the model cannot have (DK724).
    Raises UsageError (DK701 port, DK702 host, DK703 name, DK730 token), UnavailableError when the artifact cannot run
    here, MissingDependencyError without the `serve` extra, and what loading the artifact raises.
    """
    started = time.perf_counter()
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read at import: its own lines would stand between JSON logs
    modules = ["starlette", "uvicorn", "httptools", "prometheus_client"]
    for module in [*modules, *(["grpc", "tritonclient"] if grpc or Path(artifact).is_dir() else [])]:
        lazy.require(module, "serve", purpose="deploykit serve")
    token = None if token_file is None else read_token(Path(token_file))
    entries, folder = _entries(Path(artifact), name)
    for entry in entries:
        require_engine(entry.path)
    formats = {format_of(entry.path) or "" for entry in entries}
    libraries = extension_libraries(custom_ops, [target_of_format(format) for format in sorted(formats)])
    options = RuntimeOptions(device=device, provider=provider, custom_ops=libraries)
    from deploykit.data.contract import InputContract
    from deploykit.data.request import data_request
    from deploykit.data.stated import stated_contract
    from deploykit.serving.batching import BatchPolicy
    from deploykit.serving.capacity import Permits, usable_cpus
    from deploykit.serving.catalog import Catalog
    from deploykit.serving.dataplane import DataPlane
    from deploykit.serving.inference import Limits
    from deploykit.serving.logs import json_logs
    from deploykit.serving.model import Model
    from deploykit.serving.server import Server, listen

    bound = listen(host, http_port)
    permits = Permits(usable_cpus())

    def make(entry: Entry) -> Model:
        config, stated = entry.config, stated_contract(entry.path)
        policy = None if max_batch is None else BatchPolicy(max_batch, max_delay_ms / 1e3)
        if policy is None and config is not None and config.max_batch_size > 0:
            policy = config.batching or BatchPolicy()
        return Model(
            entry.path,
            name=entry.name,
            version=entry.version,
            options=options,
            batching=policy,
            instances=instances or (config.instances if config is not None else None),
            config=config,
            permits=permits,
            contract=None if stated is None else InputContract.model_validate(stated),
            calib=None if calib is None else data_request(str(calib), "calibration", samples=512, contract=stated),
        )

    with json_logs(log_level):
        models = [make(entry) for entry in entries]
        plane = DataPlane(models)
        if folder is not None:
            plane.catalog = Catalog(plane, folder, make, control=repository_control, name=name)
            for entry in entries:
                plane.catalog.adopt(entry)
        limits = Limits(max_body=int(max_body_mb * _MEGABYTE))
        port = (GRPC_PORT if http_port else 0) if grpc_port is None else grpc_port
        server = Server(plane, bound, limits, (host, port) if grpc else None, reload_seconds, token)

        def ready() -> None:
            if on_ready is not None:
                ports = {"http": server.port, "grpc": server.grpc_port}
                on_ready({"ready": True, **ports, "models": sorted({entry.name for entry in entries})})

        cut_off = server.run(ready)
    report = Report("serve", metrics=_facts(models), seconds=time.perf_counter() - started)
    for model in models if max_batch is not None and max_batch > 1 else ():
        if model.alone_because is not None:
            why = f"--max-batch {max_batch} was not used for model {model.name!r}: {model.alone_because}"
            report.add(warning("DK724", why))
    if cut_off:
        report.add(warning("DK707", f"{cut_off} requests did not end in time and were cut off when the server stopped"))
    return report


def _facts(models: Sequence[Model]) -> dict[str, Any]:
    """What was served: the first model's facts by themselves, as there is one most of the time, and those of all."""
    rows = [
        {
            "model": model.name,
            "version": model.version,
            "engine": model.engine,
            "lanes": model.capacity.lanes,
            "threads": model.capacity.threads,
            "max_batch": model.policy.max_rows,
        }
        for model in models
    ]
    return {**rows[0], "models": rows}


def require_engine(path: Path) -> None:
    """Raises UnavailableError or MissingDependencyError when the artifact's engine is not here; imports no engine.

    UsageError (DK804) for one that is served in another way.
    A broken file is refused as such first: it would be no better where the engine is.
    """
    target = target_of_format(format_of(path) or "")
    if target is not None and target.served:
        raise UsageError(
            f"{path.name} is no artifact for a model server",
            code="DK804",
            file=path,
            target=target.name,
            hint=target.served.format(path=path),
        )
    if why_not_runnable(path) is not None:
        described(path)
    require_runnable(path)
    if target is None:
        return  # open_runtime refuses it with the formats that are known
    require_packages(target, f"{target.title} artifacts")


def _entries(artifact: Path, name: str | None) -> tuple[list[Entry], Path | None]:
    """What is served, and the repository that it comes from; None for an artifact by itself."""
    if not artifact.is_dir() or format_of(artifact) is not None:
        if artifact.suffix == ".onnx":
            graph.check_file(artifact)
        chosen = artifact.stem if name is None else name
        repository.check_name(chosen)
        return [repository.Entry(artifact, chosen, "1")], None
    found = repository.entries_of(artifact)
    names = sorted({entry.name for entry in found})
    if name is not None and len(names) > 1:
        raise UsageError(
            f"{artifact} has {len(names)} models, and --name is one name: {', '.join(names)}",
            code="DK704",
            file=artifact,
            hint=f"leave --name away, or serve one of them: deploykit serve '{artifact / names[0]}'",
        )
    for entry in found:
        if entry.path.suffix == ".onnx":
            graph.check_file(entry.path)
        repository.check_name(name or entry.name)
    return [dataclasses.replace(entry, name=name) if name is not None else entry for entry in found], artifact
