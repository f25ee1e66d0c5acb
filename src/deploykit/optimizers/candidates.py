"""What the engines make of a model, each in a worker of its own; nothing here is believed yet."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from deploykit.artifact import Artifact, artifact_from_dict
from deploykit.errors import DeploykitError, ModelError, VendorError
from deploykit.isolation import run_isolated, workers
from deploykit.lazy import installed, missing
from deploykit.progress import OnProgress, Progress
from deploykit.report import Finding, note

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
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
_RAW = "raw.onnx"
_NATIVE = "deploykit.optimizers.engines"
_FOREIGN = "deploykit.optimizers.foreign"
# What each worker imports while the model is being read.
IMPORTS = {
    "native": (_NATIVE, "deploykit.optimizers.native", "deploykit.equivalence", "onnxruntime"),
    "onnxslim": (_FOREIGN, "onnxslim"),
    "onnxsim": (_FOREIGN, "onnx"),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """What one engine made: computing nodes, bytes with external data, and the files.

    original: nodes of the original, and the names of those that draw random numbers. interface: as JSON; None where
    the file has not been made here.
    exact: made by the native engine without the passes that change rounding.
    raw: as the engine wrote it, to be read and written again by `presented` before it is used.
    """

    engine: str
    path: Path
    nodes: int
    size: int
    files: tuple[str, ...]
    versions: Mapping[str, str]
    original: Mapping[str, Any]
    interface: Mapping[str, Any] | None = None
    exact: bool = False
    raw: bool = False

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
        pool.warm({worker_of(name): (IMPORTS[name], BLOCKED)})


def described(model: Path) -> Artifact:
    """`graph.describe`, told by the native engine's worker: the graph library in this process, too, takes its room."""
    return artifact_from_dict(_run("native", f"{_NATIVE}:describe_job", {"model": str(model)}), model)


def attempts(
    names: Sequence[str],
    base: Path,
    scratch: Path,
    findings: list[Finding],
    on_progress: OnProgress,
    ahead: Callable[[Candidate], None],
) -> list[Candidate]:
    """One candidate of each engine that worked, two running at once; what failed is a finding.

    ahead: what to do with the native engine's candidate while the others work. A single engine's failure is raised.
    """
    on_progress(Progress("simplifying", ", ".join(names)))
    candidates: list[Candidate] = []
    foreign = [name for name in names if name != "native"]
    with (
        workers() as pool,
        ThreadPoolExecutor(_AT_ONCE - 1) as makers,
        ThreadPoolExecutor(len(names)) as threads,
    ):
        made = {name: _submit(makers, _made, name, base, scratch, release_after=True) for name in foreign}
        futures = {}
        if "native" in names:
            after = ahead if foreign else None
            futures["native"] = _submit(threads, _natively, base, scratch, after=after)
        futures |= {
            name: _submit(threads, _rated, name, made[name], base, scratch, futures.get("native")) for name in foreign
        }
        try:
            for name in names:
                try:
                    candidates.append(futures[name].result())
                except DeploykitError as problem:
                    if len(names) == 1:
                        raise
                    findings.append(left_out(name, problem))
        except BaseException:
            # Threads wait for their workers: those have to end first, or Ctrl-C would wait for the slowest.
            for executor in (makers, threads):
                executor.shutdown(wait=False, cancel_futures=True)
            for name in dict.fromkeys(("native", *names)):
                pool.get(worker_of(name)).kill()
            raise
    return candidates


def _submit(executor: Executor, function: Callable[..., Any], *given: Any, **named: Any) -> Future[Any]:
    # A thread starts with an empty context: the pool of workers has to be handed on.
    return executor.submit(contextvars.copy_context().run, functools.partial(function, *given, **named))


def attempt(engine: str, base: Path, scratch: Path, *, exact: bool = False) -> Candidate:
    """What one engine makes of the model at `base`, below `scratch`; raises what its worker raises."""
    if engine == "native":
        return _natively(base, scratch, exact=exact)
    return presented(_raw(engine, scratch / engine / base.name, _made(engine, base, scratch)), base)


def _natively(
    base: Path, scratch: Path, *, exact: bool = False, after: Callable[[Candidate], None] | None = None
) -> Candidate:
    folder = scratch / ("native-exact" if exact else "native")
    folder.mkdir()
    given = {"model": str(base), "output": str(folder / base.name), "exact": exact}
    facts = _run("native", f"{_NATIVE}:native_job", given)
    candidate = dataclasses.replace(_candidate("native", folder / base.name, facts), exact=exact)
    if after is not None:
        after(candidate)
    return candidate


def _made(engine: str, base: Path, scratch: Path, *, release_after: bool = False) -> Mapping[str, Any]:
    """What another engine writes, as it is; its worker does without the graph library, whose import takes as long."""
    (scratch / engine).mkdir()
    given = {"engine": engine, "model": str(base), "output": str(scratch / engine / _RAW)}
    try:
        facts: Mapping[str, Any] = _run(engine, f"{_FOREIGN}:foreign_job", given)
    finally:
        if release_after:
            release(worker_of(engine))
    return facts


def _rated(
    engine: str,
    made: Future[Mapping[str, Any]],
    base: Path,
    scratch: Path,
    native: Future[Candidate] | None,
) -> Candidate:
    """The engine's candidate, left as it is where the native one, which is there first, has fewer nodes."""
    found = _raw(engine, scratch / engine / base.name, made.result())
    with contextlib.suppress(DeploykitError):  # which is said where it is asked for
        if native is not None and native.result().nodes < found.nodes:
            return found
    return presented(found, base)


def presented(candidate: Candidate, base: Path) -> Candidate:
    """The candidate with the presentation of the original, checked as any foreign model is; raises what that raises."""
    if not candidate.raw:
        return candidate
    made = candidate.path.with_name(_RAW)
    given = {"model": str(base), "made": str(made), "output": str(candidate.path)}
    facts = _run("native", f"{_NATIVE}:present_job", given)
    return _candidate(candidate.engine, candidate.path, {**facts, "versions": candidate.versions})


def _raw(engine: str, path: Path, facts: Mapping[str, Any]) -> Candidate:
    return Candidate(engine, path, facts["nodes"], facts["bytes"], (), facts["versions"], {}, raw=True)


def _candidate(engine: str, path: Path, facts: Mapping[str, Any]) -> Candidate:
    return Candidate(
        engine,
        path,
        facts["nodes"],
        facts["bytes"],
        tuple(facts["files"]),
        facts["versions"],
        facts["original"],
        facts["interface"],
    )


def left_out(engine: str, problem: DeploykitError) -> Finding:
    """What is said of an engine without a result."""
    how = "failed and was left out" if isinstance(problem, VendorError) else "gave no usable model"
    return note("DK641", f"{engine} {how}: {problem.message[:300]}")


def release(worker: str) -> None:
    """Ends a worker that has written its file: what it imported is memory that the next one needs."""
    with workers() as pool:
        pool.get(worker).kill()


def _run(engine: str, job: str, arguments: Mapping[str, Any]) -> Any:
    return run_isolated(worker_of(engine), job, arguments, block=BLOCKED, timeout=TIMEOUT_SECONDS)
