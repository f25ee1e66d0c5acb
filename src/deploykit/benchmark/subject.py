"""What is measured: an artifact, or a model behind a running server; its process and its numbers."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.artifact import Artifact, TensorSpec
from deploykit.target import target_of_format

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.isolation import Worker

SERVER = "server"
# Beyond these an artifact's latencies are those of a busy machine: the quartiles of its blocks' medians around their
# median, and the share of the time for which its threads waited for a processor.
SPREAD_LIMIT, WAITED_LIMIT = 0.15, 0.05
_CHILD = "deploykit.benchmark.child"


@dataclasses.dataclass(slots=True)
class Subject:
    """An artifact under measurement: its name in messages ("openvino int8") and what was found.

    profile: what `profiling.profile_job` found of it.
    """

    artifact: Artifact
    label: str
    reason: str | None = None
    worker: Worker | None = None
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    warm: dict[str, Any] = dataclasses.field(default_factory=dict)
    blocks: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    accuracy: float | None = None
    profile: dict[str, Any] | None = None

    @property
    def measured(self) -> bool:
        """Whether it ran."""
        return bool(self.blocks)

    @property
    def target(self) -> str:
        """The target it was made for, or the one that runs its format."""
        return target_of(self.artifact)

    @property
    def address(self) -> str:
        """Where it is: the artifact's path."""
        return str(self.artifact.path)

    @property
    def renamed(self) -> bool:
        """Whether its inputs may be called otherwise than its runtime calls them; that is asked then."""
        target = target_of_format(self.artifact.format)
        return target is not None and target.renames

    def fresh(self) -> Subject:
        """The same, unmeasured."""
        return Subject(self.artifact, self.label)

    def load(self, feeds: Sequence[str], data: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        """Loads it in its process, and keeps the facts; see `child.load_job`."""
        self.facts = self.call(
            "load_job",
            artifact=str(self.artifact.path),
            feeds=list(feeds),
            data=dict(data),
            options=dict(options),
        )

    def call(self, function: str, **arguments: Any) -> Any:
        """Calls a function of `child`, or `module:function`, in its process."""
        assert self.worker is not None
        target = target_of_format(self.artifact.format)
        name = function if ":" in function else f"{_CHILD}:{function}"
        return self.worker.call(name, arguments, block=target.blocked if target else ())

    def latencies(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """All measured calls, in ms."""
        return np.concatenate([np.asarray(block["latencies_ms"], np.float64) for block in self.blocks])

    def block_medians(self) -> list[float]:
        """The median latency of each block, in ms, in the order of the rounds."""
        return [float(np.median(block["latencies_ms"])) for block in self.blocks]

    def spread(self) -> float:
        """Distance of the quartiles of the blocks' medians, relative to their median."""
        low, middle, high = np.percentile(self.block_medians(), [25, 50, 75])
        return float((high - low) / middle)

    def waited_share(self) -> float | None:
        """Time that its threads, together, waited for a processor, as a share of the measured time; None: not told."""
        waits = [block["waited_s"] for block in self.blocks]
        if not waits or None in waits:
            return None
        return float(sum(waits) / sum(block["wall_s"] for block in self.blocks))

    def row(self, batch: int) -> dict[str, Any]:
        """The row of the JSON contract; numbers are None where it was not measured."""
        empty = dict.fromkeys(("p50_ms", "p95_ms", "p99_ms", "throughput_per_s", "load_s"))
        row: dict[str, Any] = {
            "artifact": self.address,
            "label": self.label,
            "target": self.target,
            "precision": self.artifact.precision,
            "sha256": self.artifact.sha256,
            "runtime": self.facts.get("engine"),
            "execution": self.facts.get("execution", "none"),
            **empty,
            "rss_mb": dict.fromkeys(("base", "loaded", "after", "peak")),
            "size_mb": self.artifact.size_bytes / 1e6,
            "batch": batch,
            "calls": 0,
            "spread": None,
            "blocks_ms": [],
            "cpu_ms": [],
            "waited_share": None,
            "reason": self.reason,
            "accuracy": self.accuracy,
            "profile": self.profile,
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
            "blocks_ms": self.block_medians(),
            "waited_share": self.waited_share(),
            "cpu_ms": [block["cpu_s"] * 1e3 / len(block["latencies_ms"]) for block in self.blocks],
        }


@dataclasses.dataclass(slots=True)
class ServedSubject(Subject):
    """A model behind a running server, called by so many clients at once."""

    url: str = ""
    name: str = ""
    clients: int = 1

    @classmethod
    def of(cls, url: str, clients: int, found: Mapping[str, Any]) -> ServedSubject:
        """From what `server.describe_job` found."""
        inputs, outputs = (tuple(map(TensorSpec.from_dict, found[side])) for side in ("inputs", "outputs"))
        # What the server computes in, and from which bytes, it does not tell.
        facts: dict[str, Any] = {"inputs": inputs, "outputs": outputs, "target": SERVER, "precision": "unknown"}
        artifact = Artifact(Path(found["name"]), SERVER, **facts)
        return cls(artifact, f"{SERVER} {found['name']}", url=url, name=found["name"], clients=clients)

    @property
    def address(self) -> str:
        """Where it is: the server's URL."""
        return self.url

    def fresh(self) -> ServedSubject:
        """The same, unmeasured."""
        return ServedSubject(self.artifact, self.label, url=self.url, name=self.name, clients=self.clients)

    def load(self, feeds: Sequence[str], data: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        """Connects its clients; the options are for engines that are loaded here."""
        del options
        arguments = {"url": self.url, "name": self.name, "clients": self.clients}
        self.facts = self.call("connect_job", **arguments, feeds=list(feeds), data=dict(data))

    def row(self, batch: int) -> dict[str, Any]:
        """As of an artifact, with `model` and `clients`; the server's memory and size are not known here."""
        # Called on the class: a slotted dataclass is made anew, and super() would mean the one before.
        row = Subject.row(self, batch) | {"model": self.name, "clients": self.clients, "size_mb": None}
        if not self.measured:
            return row
        seconds = sum(block["wall_s"] for block in self.blocks)
        unknown = dict.fromkeys(("base", "loaded", "after", "peak"))
        # The client's own processor time says nothing of the server's.
        return row | {"rss_mb": unknown, "cpu_ms": [], "throughput_per_s": batch * row["calls"] / seconds}


def subjects_of(artifacts: Sequence[Artifact]) -> list[Subject]:
    """The artifacts with labels that tell them apart."""
    return [Subject(artifact, label) for artifact, label in zip(artifacts, labels(artifacts), strict=True)]


def labels(artifacts: Sequence[Artifact]) -> list[str]:
    """`target precision` of each, with the file's name, then its position, where that is not unique."""
    short = [f"{target_of(artifact)} {artifact.precision}" for artifact in artifacts]
    named = [
        label if short.count(label) == 1 else f"{label} ({artifact.path.name})"
        for label, artifact in zip(short, artifacts, strict=True)
    ]
    return [label if named.count(label) == 1 else f"{label} #{at}" for at, label in enumerate(named, 1)]


def target_of(artifact: Artifact) -> str:
    """The target it was made for, or the one that runs its format."""
    found = artifact.target or getattr(target_of_format(artifact.format), "name", None)
    return found or artifact.format
