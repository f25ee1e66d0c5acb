"""The installed engines, asked about a model at the same time, each in its own worker."""

from __future__ import annotations

import concurrent.futures
import contextvars
import dataclasses
import os
from typing import TYPE_CHECKING, Any

from deploykit import lazy
from deploykit.errors import UnavailableError, VendorError
from deploykit.isolation import run_isolated, workers
from deploykit.opsupport.verdict import Status, Verdict
from deploykit.report import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from deploykit.target import Target


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What an engine says of a model. source: who it is. rows: a verdict for each node, by its order or its name.

    partitions: pieces in which the engine itself says that it would run the model.
    """

    source: str
    rows: tuple[Mapping[str, Any], ...]
    partitions: int | None
    findings: tuple[Finding, ...]

    def verdicts(self, nodes: Sequence[tuple[str, str]]) -> Iterator[Verdict]:
        """For each (name, op type): by position where the order is the same (sources may leave nodes nameless)."""
        aligned = [row["op"] for row in self.rows] == [op for _, op in nodes]
        by_name = {row["node"]: row for row in self.rows}
        for index, (name, _) in enumerate(nodes):
            row = self.rows[index] if aligned else by_name.get(name)
            if row is None:
                yield Verdict(Status.UNKNOWN, "the target's source says nothing of it", "convert the model to find out")
            else:
                yield Verdict.from_dict({**row, "source": row.get("source") or self.source})


Problem = UnavailableError | VendorError


def why_not_asked(target: Target) -> UnavailableError | None:
    """What keeps the target's engine from being asked here; None when nothing does."""
    if target.support is None:
        return UnavailableError(
            f"no engine of {target.title} says which operators it takes", code="DK208", target=target.name
        )
    for package in target.packages:
        if not lazy.installed(package):
            return lazy.missing(package, target.extra or target.name, f"asking {target.title} about the model")
    return None


def ask_all(
    questions: Sequence[tuple[Target, Mapping[str, Any]]],
    on_answer: Callable[[int], None],
    meanwhile: Callable[[], None],
) -> list[Answer | Problem]:
    """The answers of all targets' engines, in the order of the questions: (target, arguments of its support job).

    Engines of different workers are asked at once, as many as there are processors: each may hold the whole model.
    on_answer: told how many have answered. meanwhile: what this process has to do itself.
    Raises what else a job raises: UsageError for an option, ModelError for the file.
    """
    with workers():
        pool = concurrent.futures.ThreadPoolExecutor(max_workers=max(1, min(len(questions), os.cpu_count() or 1)))
        try:
            # Each thread needs a copy of its own: a context cannot be entered twice at once.
            futures = [
                pool.submit(contextvars.copy_context().run, _ask, target, arguments) for target, arguments in questions
            ]
            meanwhile()
            for done, _ in enumerate(concurrent.futures.as_completed(futures), 1):
                on_answer(done)
            return [future.result() for future in futures]
        finally:
            # After an interrupt nobody waits: leaving `workers` ends the processes, and with them the threads.
            pool.shutdown(wait=False, cancel_futures=True)


def _ask(target: Target, arguments: Mapping[str, Any]) -> Answer | Problem:
    missing = why_not_asked(target)
    if missing is not None or target.support is None:
        return missing or UnavailableError(f"nobody can be asked about {target.title}", code="DK208")
    try:
        said = run_isolated(target.worker, target.support, arguments, block=target.blocked)
    except (UnavailableError, VendorError) as problem:
        return problem
    findings = tuple(Finding.from_dict(facts) for facts in said["findings"])
    return Answer(said["source"], tuple(said["nodes"]), said["partitions"], findings)
