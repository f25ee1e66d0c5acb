"""Measuring several artifacts against each other: a fresh process each, blocks in turns."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from typing import TYPE_CHECKING, Any

from deploykit.benchmark import profiling
from deploykit.benchmark.subject import SPREAD_LIMIT, WAITED_LIMIT, ServedSubject, Subject
from deploykit.comparison import why_not_runnable
from deploykit.errors import UnavailableError
from deploykit.isolation import Worker
from deploykit.progress import OnProgress, Progress, silent
from deploykit.report import Finding, note, warning

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROUNDS = 10
# A block has at least this many calls of the slowest artifact, so that a slow one does not get a call a block.
_CALLS_IN_BLOCK = 2


@dataclasses.dataclass(slots=True)
class Measured:
    """What `run_bench` found: subjects in the given order, rows in a call, the data and their digest, findings."""

    subjects: list[Subject]
    batch: int
    data: str
    digest: str
    findings: list[Finding]

    def rows(self) -> list[dict[str, Any]]:
        """The rows of the JSON contract."""
        return [subject.row(self.batch) for subject in self.subjects]


def run_bench(
    subjects: Sequence[Subject],
    data: Mapping[str, Any],
    *,
    batch: int = 1,
    seconds: float = 1.0,
    warmup_s: float = 2.0,
    options: Mapping[str, Any] | None = None,
    per_op: bool = False,
    on_progress: OnProgress = silent,
) -> Measured:
    """Measures artifacts and servers on the same feeds, each in a fresh process that is kept to the end.

    data: a `DataRequest`. seconds: measured time of each artifact, in 10 blocks that take turns and start with another
    artifact each round (fewer blocks when single calls are slow; each artifact is called at least twice). warmup_s:
    limit of each artifact's warm-up, which ends when latency is stable. options: device, provider, threads. per_op: the
    engines' own profiles, too, when all else is measured.
    An artifact that cannot run here has no numbers, a reason and a note DK443. Warns of a spread above 15 % (DK440) and
    of an unfinished warm-up (DK441).
    Raises DataError for data or a batch that does not fit, and what opening an artifact raises.
    """
    subjects = [subject.fresh() for subject in subjects]
    for subject in subjects:
        if not isinstance(subject, ServedSubject):
            subject.reason = why_not_runnable(subject.artifact.path)
    here = [subject for subject in subjects if subject.reason is None]
    rows, description, digest, findings = batch, "", "", []
    if here:
        with tempfile.TemporaryDirectory(prefix="deploykit-bench-") as folder, contextlib.ExitStack() as workers:
            prepared = _prepare(here, data, batch, folder)
            rows, description, digest = prepared["batch"], prepared["description"], prepared["digest"]
            findings += [Finding.from_dict(facts) for facts in prepared["findings"]]
            ready = _load(here, prepared["files"], data, options or {}, workers, on_progress)
            _measure(ready, seconds, warmup_s, on_progress)
            findings += [finding for subject in ready for finding in _doubts(subject, warmup_s)]
            if per_op:
                findings += _profile(ready, on_progress)
    for subject in subjects:
        if subject.reason is not None:
            said = note("DK443", f"{subject.label} was not measured: {subject.reason}", target=subject.target)
            findings.append(said)
    return Measured(subjects, rows, description, digest, findings)


def _prepare(here: Sequence[Subject], data: Mapping[str, Any], batch: int, folder: str) -> dict[str, Any]:
    """Writes the feeds, in a process of its own so that no measured one has their making in its memory."""
    from deploykit.data.sizes import common_inputs

    # A server's inputs come last: it does not name the dimensions that are open.
    ordered = sorted(here, key=lambda subject: isinstance(subject, ServedSubject))
    inputs = next((one.artifact.inputs for one in ordered if one.artifact.inputs and not one.renamed), ())
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
            subject.load(files, data, options)
        except UnavailableError as problem:
            if isinstance(subject, ServedSubject):  # it answered a moment ago
                raise
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


def _profile(ready: Sequence[Subject], on_progress: OnProgress) -> list[Finding]:
    """Keeps each one's profile: after all timing and memory, since an engine may open the artifact anew for it."""
    found = []
    models = [subject.artifact for subject in ready if subject.artifact.format == "onnx"]
    for index, subject in enumerate(ready):
        on_progress(Progress("profiling", subject.label, index, len(ready)))
        own = subject.artifact
        # Itself, then what it was made from, then any other model here that may have its nodes.
        nearest = sorted(models, key=lambda model: (model is not own, model.sha256 != own.parent_sha256))
        told = subject.call("deploykit.benchmark.profiling:profile_job", models=[str(m.path) for m in nearest])
        subject.profile = profiling.summary(told)
        found += profiling.about(subject.label, subject.target, told, subject.profile)
    return found


def _doubts(subject: Subject, warmup_s: float) -> list[Finding]:
    """Warnings about this artifact's numbers."""
    found = []
    target = subject.target
    if not subject.warm["stable"]:
        text = f"{subject.label}: latency was still changing after {warmup_s:g} s of warming up"
        found.append(warning("DK441", text, target=target, hint="measure for longer: --seconds 10"))
    share = subject.waited_share()
    if share is not None and share > WAITED_LIMIT:
        text = f"{subject.label}: its threads waited for a processor for {share:.0%} of the measured time"
        hint = "stop other programs, or read the numbers as those of a busy machine"
        found.append(warning("DK440", text, target=target, hint=hint))
    spread = subject.spread()
    if spread > SPREAD_LIMIT:
        text = f"{subject.label}: the blocks' median latencies spread by {spread:.0%} (limit {SPREAD_LIMIT:.0%})"
        hint = "stop other programs, set --threads, or measure for longer: --seconds 10"
        found.append(warning("DK440", text, target=target, hint=hint))
    return found
