"""Measuring several artifacts against each other: a fresh process each, blocks in turns."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.comparison import why_not_runnable
from deploykit.errors import UnavailableError
from deploykit.isolation import Worker
from deploykit.progress import OnProgress, Progress, silent
from deploykit.report import Finding, note, warning
from deploykit.target import target_of_format

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.artifact import Artifact

ROUNDS = 10
# A block has at least this many calls of the slowest artifact, so that a slow one does not get a call a block.
_CALLS_IN_BLOCK = 2
SPREAD_LIMIT = 0.15
_CHILD = "deploykit.benchmark.child"


@dataclasses.dataclass(slots=True)
class Subject:
    """An artifact under measurement: its name in messages ("openvino int8") and what was found."""

    artifact: Artifact
    label: str
    reason: str | None = None
    worker: Worker | None = None
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    warm: dict[str, Any] = dataclasses.field(default_factory=dict)
    blocks: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    accuracy: float | None = None

    @property
    def measured(self) -> bool:
        """Whether it ran."""
        return bool(self.blocks)

    @property
    def target(self) -> str:
        """The target it was made for, or the one that runs its format."""
        return _target_of(self.artifact)

    @property
    def renamed(self) -> bool:
        """Whether its inputs may be called otherwise than its runtime calls them; that is asked then."""
        target = target_of_format(self.artifact.format)
        return target is not None and target.renames

    def call(self, function: str, **arguments: Any) -> Any:
        """Calls a function of `child` in the artifact's process."""
        assert self.worker is not None
        target = target_of_format(self.artifact.format)
        return self.worker.call(f"{_CHILD}:{function}", arguments, block=target.blocked if target else ())

    def latencies(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """All measured calls, in ms."""
        return np.concatenate([np.asarray(block["latencies_ms"], np.float64) for block in self.blocks])

    def spread(self) -> float:
        """Distance of the quartiles of the blocks' medians, relative to their median."""
        medians = [float(np.median(block["latencies_ms"])) for block in self.blocks]
        low, middle, high = np.percentile(medians, [25, 50, 75])
        return float((high - low) / middle)

    def row(self, batch: int) -> dict[str, Any]:
        """The row of the JSON contract; numbers are None where it was not measured."""
        empty = dict.fromkeys(("p50_ms", "p95_ms", "p99_ms", "throughput_per_s", "load_s"))
        row: dict[str, Any] = {
            "artifact": str(self.artifact.path),
            "label": self.label,
            "target": self.target,
            "precision": self.artifact.precision,
            "runtime": self.facts.get("engine"),
            "execution": self.facts.get("execution", "none"),
            **empty,
            "rss_mb": dict.fromkeys(("base", "loaded", "after", "peak")),
            "size_mb": self.artifact.size_bytes / 1e6,
            "batch": batch,
            "calls": 0,
            "spread": None,
            "reason": self.reason,
            "accuracy": self.accuracy,
        }
        if not self.measured:
            return row
        times = self.latencies()
        p50, p95, p99 = np.percentile(times, [50, 95, 99])
        return row | {
            "p50_ms": float(p50),
            "p95_ms": float(p95),
            "p99_ms": float(p99),
            "throughput_per_s": batch * len(times) / (float(times.sum()) / 1e3),
            "load_s": self.facts["load_s"],
            "rss_mb": {
                **self.facts["rss_mb"],
                "after": self.blocks[-1]["rss_mb"],
                "peak": max(block["peak_mb"] for block in self.blocks),
            },
            "calls": len(times),
            "spread": self.spread(),
        }


@dataclasses.dataclass(slots=True)
class Measured:
    """What `run_bench` found: subjects in the given order, rows in a call, the data, findings."""

    subjects: list[Subject]
    batch: int
    data: str
    findings: list[Finding]

    def rows(self) -> list[dict[str, Any]]:
        """The rows of the JSON contract."""
        return [subject.row(self.batch) for subject in self.subjects]


def run_bench(
    artifacts: Sequence[Artifact],
    data: Mapping[str, Any],
    *,
    batch: int = 1,
    seconds: float = 1.0,
    warmup_s: float = 2.0,
    options: Mapping[str, Any] | None = None,
    on_progress: OnProgress = silent,
) -> Measured:
    """Measures artifacts on the same feeds, each in a fresh process that is kept to the end.

    data: a `DataRequest`. seconds: measured time of each artifact, in 10 blocks that take turns and start with another
    artifact each round (fewer blocks when single calls are slow; each artifact is called at least twice). warmup_s:
    limit of each artifact's warm-up, which ends when latency is stable. options: device, provider, threads.
    An artifact that cannot run here has no numbers, a reason and a note DK443. Warns of a spread above 15 % (DK440) and
    of an unfinished warm-up (DK441).
    Raises DataError for data or a batch that does not fit, and what opening an artifact raises.
    """
    subjects = [Subject(artifact, label) for artifact, label in zip(artifacts, labels(artifacts), strict=True)]
    for subject in subjects:
        subject.reason = why_not_runnable(subject.artifact.path)
    here = [subject for subject in subjects if subject.reason is None]
    rows, description, findings = batch, "", []
    if here:
        with tempfile.TemporaryDirectory(prefix="deploykit-bench-") as folder, contextlib.ExitStack() as workers:
            prepared = _prepare(here, data, batch, folder)
            rows, description = prepared["batch"], prepared["description"]
            findings += [Finding.from_dict(facts) for facts in prepared["findings"]]
            ready = _load(here, prepared["files"], data, options or {}, workers, on_progress)
            _measure(ready, seconds, warmup_s, on_progress)
            findings += [finding for subject in ready for finding in _doubts(subject, warmup_s)]
    for subject in subjects:
        if subject.reason is not None:
            said = note("DK443", f"{subject.label} was not measured: {subject.reason}", target=subject.target)
            findings.append(said)
    return Measured(subjects, rows, description, findings)


def labels(artifacts: Sequence[Artifact]) -> list[str]:
    """`target precision` of each, with the file's name, then its position, where that is not unique."""
    short = [f"{_target_of(artifact)} {artifact.precision}" for artifact in artifacts]
    named = [
        label if short.count(label) == 1 else f"{label} ({artifact.path.name})"
        for label, artifact in zip(short, artifacts, strict=True)
    ]
    return [label if named.count(label) == 1 else f"{label} #{at}" for at, label in enumerate(named, 1)]


def _target_of(artifact: Artifact) -> str:
    """The target it was made for, or the one that runs its format."""
    found = artifact.target or getattr(target_of_format(artifact.format), "name", None)
    return found or artifact.format


def _prepare(here: Sequence[Subject], data: Mapping[str, Any], batch: int, folder: str) -> dict[str, Any]:
    """Writes the feeds, in a process of its own so that no measured one has their making in its memory."""
    from deploykit.data.sizes import common_inputs

    inputs = next((subject.artifact.inputs for subject in here if subject.artifact.inputs and not subject.renamed), ())
    for subject in here:
        inputs = common_inputs(inputs, subject.artifact.inputs)
    onnx = next((subject for subject in here if subject.artifact.format == "onnx"), here[0])
    # An artifact that was made for a set of sizes takes no others.
    made_for = {k: v for subject in here for k, v in subject.artifact.options.get("dims", {}).items() if v[2:]}
    worker = Worker("bench data")
    try:
        prepared: dict[str, Any] = worker.call(
            "deploykit.benchmark.feeds:prepare_job",
            {
                "artifact": str(onnx.artifact.path),
                "inputs": [spec.as_dict() for spec in inputs],
                "data": {**data, "dims": {**made_for, **(data.get("dims") or {})}},
                "batch": batch,
                "folder": folder,
            },
        )
    finally:
        worker.kill()
    return prepared


def _load(
    here: Sequence[Subject],
    files: Sequence[str],
    data: Mapping[str, Any],
    options: Mapping[str, Any],
    workers: contextlib.ExitStack,
    on_progress: OnProgress,
) -> list[Subject]:
    """Those that opened; one whose engine turns out not to be here keeps the reason."""
    ready = []
    for index, subject in enumerate(here):
        on_progress(Progress("loading", subject.label, index, len(here)))
        subject.worker = Worker(subject.label)
        workers.callback(subject.worker.kill)
        try:
            subject.facts = subject.call(
                "load_job",
                artifact=str(subject.artifact.path),
                feeds=list(files),
                data=dict(data),
                options=dict(options),
            )
        except UnavailableError as problem:
            subject.reason = problem.message
            continue
        ready.append(subject)
    return ready


def _measure(ready: Sequence[Subject], seconds: float, warmup_s: float, on_progress: OnProgress) -> None:
    for index, subject in enumerate(ready):
        on_progress(Progress("warming up", subject.label, index, len(ready)))
        subject.warm = subject.call("warm_job", limit_s=warmup_s)
    if not ready:
        return
    slowest_s = max(subject.warm["median_ms"] for subject in ready) / 1e3
    rounds = max(2, min(ROUNDS, int(seconds / (_CALLS_IN_BLOCK * slowest_s)) if slowest_s else ROUNDS))
    for turn in range(rounds):
        # Another one begins each round: the first after a pause runs on a cooler, faster clock.
        first = turn % len(ready)
        for at, subject in enumerate([*ready[first:], *ready[:first]]):
            on_progress(Progress("measuring", subject.label, turn * len(ready) + at, rounds * len(ready)))
            subject.blocks.append(subject.call("block_job", seconds=seconds / rounds))


def _doubts(subject: Subject, warmup_s: float) -> list[Finding]:
    """Warnings about this artifact's numbers."""
    found = []
    target = subject.target
    if not subject.warm["stable"]:
        text = f"{subject.label}: latency was still changing after {warmup_s:g} s of warming up"
        found.append(warning("DK441", text, target=target, hint="measure for longer: --seconds 10"))
    spread = subject.spread()
    if spread > SPREAD_LIMIT:
        text = f"{subject.label}: the blocks' median latencies spread by {spread:.0%} (limit {SPREAD_LIMIT:.0%})"
        hint = "stop other programs, set --threads, or measure for longer: --seconds 10"
        found.append(warning("DK440", text, target=target, hint=hint))
    return found
