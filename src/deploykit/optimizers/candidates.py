"""What the engines make of a model, each in a worker of its own; nothing here is believed yet."""

from __future__ import annotations

import concurrent.futures
import contextvars
import dataclasses
import functools
from typing import TYPE_CHECKING, Any

from deploykit.errors import DeploykitError, ModelError, VendorError
from deploykit.isolation import run_isolated, workers
from deploykit.lazy import installed, missing
from deploykit.progress import OnProgress, Progress
from deploykit.report import Finding, note

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from deploykit.isolation import WorkerPool

ENGINES: dict[str, tuple[str, ...]] = {"native": (), "onnxslim": ("onnxslim",), "onnxsim": ("onnxsim",)}
# onnxsim imports torch when it can (1.1 s), and nothing of it is needed.
BLOCKED = ("torch", "tensorflow", "torchvision")
# A crash or an endless loop of one engine is a line in the report.
TIMEOUT_SECONDS = 600.0
# These take the whole model as one protobuf message, which ends at 2 GB, and copy it several times.
IN_ONE_MESSAGE = ("onnxsim", "onnxslim")
LARGEST_MESSAGE = 1_900_000_000
# They need seven to nineteen times a model's size. Asked for by name they may have it.
LARGEST_FOR_ALL = 64 << 20
# Each engine is a process of about 100 MB.
_AT_ONCE = 2
_NATIVE = "deploykit.optimizers.engines"
_FOREIGN = "deploykit.optimizers.foreign"
# What each worker imports while the model is being read.
_IMPORTS = {
    "native": (_NATIVE, "deploykit.optimizers.native", "onnxruntime"),
    "onnxslim": (_FOREIGN, "onnxslim"),
    "onnxsim": (_FOREIGN, "onnxsim"),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """What one engine made: computing nodes, bytes with external data, and the files.

    original: nodes of the original, and the names of those that draw random numbers.
    exact: made by the native engine without the passes that change rounding.
    """

    engine: str
    path: Path
    nodes: int
    size: int
    files: tuple[str, ...]
    versions: Mapping[str, str]
    original: Mapping[str, Any]
    exact: bool = False

    @property
    def rank(self) -> tuple[int, int]:
        """Nodes, then bytes: less is better."""
        return self.nodes, self.size


def worker_of(engine: str) -> str:
    """Name of the worker that an engine runs in."""
    return f"simplify-{engine}"


def engines_for(engine: str, size: int, findings: list[Finding]) -> list[str]:
    """The engines to try on a model of `size` bytes; `engine` is one of them, or "auto".

    Raises MissingDependencyError for an engine that is not installed, ModelError (DK637) for one that cannot take it.
    """
    if engine != "auto":
        absent = [package for package in ENGINES[engine] if not installed(package)]
        if absent:
            raise missing(absent[0], "simplify", f"--engine {engine}")
        if engine in IN_ONE_MESSAGE and size > LARGEST_MESSAGE:
            raise ModelError(
                f"the model has {size} bytes, and {engine} takes models of less than 2 GB",
                code="DK637",
                hint="--engine native",
            )
        return [engine]
    if size > LARGEST_MESSAGE:
        text = f"the model has more than 2 GB, so these were not tried: {', '.join(IN_ONE_MESSAGE)}"
        findings.append(note("DK637", text))
        return ["native"]
    if size > LARGEST_FOR_ALL:
        text = f"not tried on {size >> 20} MiB, of which they need many times as much: {', '.join(IN_ONE_MESSAGE)}"
        findings.append(note("DK662", text, hint="--engine onnxsim, or --engine onnxslim"))
        return ["native"]
    ready = [name for name, packages in ENGINES.items() if all(map(installed, packages))]
    left = [name for name in ENGINES if name not in ready]
    if left:
        text = f"not installed, so not tried: {', '.join(left)}"
        findings.append(note("DK642", text, hint="pip install 'deploykit[simplify]'"))
    return ready


def warm(pool: WorkerPool, engine: str, size: int) -> None:
    """Starts the workers that work first, so that they import while the model is read here."""
    names = [engine] if engine != "auto" else [name for name in ENGINES if name == "native" or size <= LARGEST_FOR_ALL]
    ready = [name for name in ("native", *names) if all(map(installed, ENGINES[name]))]
    for name in list(dict.fromkeys(ready))[:_AT_ONCE]:
        pool.warm({worker_of(name): (_IMPORTS[name], BLOCKED)})


def attempts(
    names: Sequence[str], base: Path, scratch: Path, findings: list[Finding], on_progress: OnProgress
) -> list[Candidate]:
    """One candidate of each engine that worked, two running at once; what failed is a finding.

    A single engine's failure is raised.
    """
    on_progress(Progress("simplifying", ", ".join(names)))
    candidates: list[Candidate] = []
    with workers() as pool, concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as threads:
        # A thread starts with an empty context: the pool of workers has to be handed on.
        futures = {
            name: threads.submit(contextvars.copy_context().run, functools.partial(_attempt_once, name, base, scratch))
            for name in names
        }
        try:
            for name, future in futures.items():
                try:
                    candidates.append(future.result())
                except DeploykitError as problem:
                    if len(names) == 1:
                        raise
                    how = "failed and was left out" if isinstance(problem, VendorError) else "gave no usable model"
                    findings.append(note("DK641", f"{name} {how}: {problem.message[:300]}"))
        except BaseException:
            # Threads wait for their workers: those have to end first, or Ctrl-C would wait for the slowest.
            threads.shutdown(wait=False, cancel_futures=True)
            for name in names:
                pool.get(worker_of(name)).kill()
            raise
    return candidates


def _attempt_once(engine: str, base: Path, scratch: Path) -> Candidate:
    try:
        return attempt(engine, base, scratch)
    finally:
        if engine != "native":
            release(worker_of(engine))


def attempt(engine: str, base: Path, scratch: Path, *, exact: bool = False) -> Candidate:
    """What one engine makes of the model at `base`, below `scratch`; raises what its worker raises."""
    folder = scratch / f"{engine}{'-exact' if exact else ''}"
    folder.mkdir()
    path = folder / base.name
    if engine == "native":
        facts = _run("native", f"{_NATIVE}:native_job", {"model": str(base), "output": str(path), "exact": exact})
    else:
        # The other engines' workers do without the graph library: its import takes as long as theirs.
        raw = folder / "raw.onnx"
        given = {"engine": engine, "model": str(base), "output": str(raw)}
        made = _run(engine, f"{_FOREIGN}:foreign_job", given)
        facts = _run("native", f"{_NATIVE}:present_job", {"model": str(base), "made": str(raw), "output": str(path)})
        facts["versions"] = made["versions"]
    return Candidate(
        engine,
        path,
        facts["nodes"],
        facts["bytes"],
        tuple(facts["files"]),
        facts["versions"],
        facts["original"],
        exact=exact,
    )


def release(worker: str) -> None:
    """Ends a worker that has written its file: what it imported is memory that the next one needs."""
    with workers() as pool:
        pool.get(worker).kill()


def _run(engine: str, job: str, arguments: Mapping[str, Any]) -> Any:
    return run_isolated(worker_of(engine), job, arguments, block=BLOCKED, timeout=TIMEOUT_SECONDS)
