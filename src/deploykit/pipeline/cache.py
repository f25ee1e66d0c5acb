"""A content-addressed store of step results: same inputs, options and versions, same key, no work."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deploykit
from deploykit import io
from deploykit.artifact import Artifact, artifact_from_dict
from deploykit.errors import ExitCode
from deploykit.report import Finding, Report

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

RESULT = "result.json"


@functools.cache
def code_digest() -> str:
    """Digest of deploykit's own sources: a change of ours is a change of tool version, released or not."""
    package = Path(deploykit.__file__).parent
    return io.digest([*sorted(package.rglob("*.py")), *sorted(package.rglob("*.toml"))])


@functools.cache
def machine() -> str:
    """What a measurement depends on besides the artifact: processor and usable cores."""
    model = ""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{model} x{cores}"


@dataclasses.dataclass(slots=True)
class Entry:
    """A stored step result: the report, its artifact inside the store."""

    folder: Path
    report: Report
    facts: dict[str, Any]


class Cache:
    """Step results below one folder. Entries appear whole (renamed into place) and are verified when read."""

    def __init__(self, root: Path, *, read: bool = True) -> None:
        """root: created when first written to. read=False recomputes everything and replaces what was stored."""
        self.root = root
        self.read = read

    @staticmethod
    def key(facts: Mapping[str, Any]) -> str:
        """SHA-256 of the facts as canonical JSON, with our own code's digest."""
        text = json.dumps({**facts, "code": code_digest()}, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    def folder(self, stage: str, key: str) -> Path:
        """Where the entry of that key lies."""
        return self.root / stage / key[:32]

    def find(self, stage: str, key: str) -> Entry | None:
        """The entry, when it is whole, unchanged, and the files that it was found to depend on are unchanged."""
        folder = self.folder(stage, key)
        if not self.read or not (folder / RESULT).is_file():
            return None
        try:
            facts = json.loads((folder / RESULT).read_text(encoding="utf-8"))
            for name, expected in facts["files"].items():
                if io.digest([folder / name]) != expected:
                    return None
            for name, expected in facts["depends"].items():
                if io.file_sha256(Path(name)) != expected:
                    return None
            return Entry(folder, _report(facts, folder), facts)
        except (OSError, ValueError, KeyError, TypeError):
            return None  # damaged or from another layout: made again

    @contextlib.contextmanager
    def filling(self, stage: str, key: str) -> Iterator[Path]:
        """A folder for the step's files; `store` makes the entry of it, anything else leaves nothing."""
        parent = self.root / stage
        parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".", suffix=".tmp", dir=parent))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def store(self, stage: str, key: str, folder: Path, report: Report, depends: Mapping[str, str]) -> Entry:
        """Moves a filled folder into the store and returns its entry."""
        facts = {
            "report": report.as_dict(),
            "artifact": report.artifact.path.name if report.artifact else None,
            "manifest": report.artifact.manifest() if report.artifact else None,
            "files": {
                entry.name: io.digest([entry]) for entry in sorted(folder.iterdir()) if not entry.name.startswith(".")
            },
            "depends": dict(depends),
        }
        (folder / RESULT).write_text(json.dumps(facts, indent=1, ensure_ascii=False), encoding="utf-8")
        final = self.folder(stage, key)
        if final.exists():
            shutil.rmtree(final)
        folder.rename(final)
        return Entry(final, _report(facts, final), facts)


def _report(facts: dict[str, Any], folder: Path) -> Report:
    stored = facts["report"]
    artifacts: list[Artifact] = []
    if facts["artifact"]:
        artifacts.append(artifact_from_dict(facts["manifest"], folder / facts["artifact"]))
    return Report(
        command=stored["command"],
        artifacts=artifacts,
        findings=[Finding.from_dict(finding) for finding in stored["findings"]],
        metrics=stored["metrics"],
        seconds=stored["seconds"],
        forced_exit=ExitCode(stored["exit_code"]) if stored["exit_code"] == ExitCode.UNAVAILABLE else None,
    )
