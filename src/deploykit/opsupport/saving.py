"""Refused nodes as small models with inputs, for a bug report: a folder that says what each is and how to see it."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit import graph, io
from deploykit.errors import DeploykitError, ModelError, OutputError
from deploykit.graph.extraction import NodeModels
from deploykit.isolation import run_isolated
from deploykit.opsupport.checker import check_model
from deploykit.opsupport.probe import RUN_SECONDS, identity, matched_sizes, sizes_of
from deploykit.opsupport.verdict import Status
from deploykit.progress import OnProgress, Progress, silent
from deploykit.report import Finding, note, warning
from deploykit.target import comparison_worker, get_target

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx_ir as ir

    from deploykit.opsupport.summary import NodeVerdict, TargetSummary

INDEX = "nodes.json"
README = "README.txt"
SCHEMA = "deploykit.nodes/1"
_TRIAL = "deploykit.converters.trial:trial_job"
_LONGEST = 80  # bytes of a file name's stem: what is added to it has room in 255
_RESERVED = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))}
_HEAD = """Nodes of {model} that a target refuses, each a model of its own with its real types, shapes and constants.

Beside X.onnx lies X.inputs.npz with inputs for it (random, seed {seed}), and X.outputs.npz with what ONNX Runtime
without graph optimisation makes of them, where it takes them. {index} holds the same as below.
The commands are for this folder.
"""


@dataclasses.dataclass(frozen=True, slots=True)
class SavedNode:
    """One written node. files: below the folder, the model first. alone: whether it is refused when nothing is around.

    reason: as the target gave it for the node in the model. reference: why there are no outputs; "" where there are.
    """

    target: str
    node: str
    op: str
    reason: str
    source: str
    files: tuple[str, ...]
    alone: bool
    command: str
    reference: str = ""
    scope: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """JSON form, one entry of the folder's index."""
        return {**dataclasses.asdict(self), "files": list(self.files)}


def check_folder(folder: Path, *, force: bool) -> None:
    """Refuses a folder that could not be written, before any work is done.

    A folder with something in it is replaced by `force` only when all of it is ours. Raises OutputError: DK120, DK121
    for something that is no folder, and what `io.check_output` raises.
    """
    if os.path.lexists(folder) and not folder.is_dir():
        raise OutputError(f"not a folder: {folder}", code="DK121", file=folder, hint="--save-nodes takes a folder")
    occupied = folder.is_dir() and any(folder.iterdir())
    io.check_output(folder, force=force or not occupied)
    stranger = _stranger(folder) if occupied else None
    if stranger is not None:
        raise OutputError(
            f"{folder} holds {stranger!r}, which no --save-nodes wrote, and replacing the folder would lose it",
            code="DK120",
            file=folder,
            hint="choose a new folder",
        )


def _stranger(folder: Path) -> str | None:
    """A file in the folder that its index does not list; None when there is none."""
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        known = {name for entry in index["nodes"] for name in entry["files"]} if index["schema"] == SCHEMA else set()
    except (OSError, ValueError, KeyError, TypeError):
        known = set()
    known |= {INDEX, README} if known else set()
    found = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())
    return next((name for name in sorted(found) if name not in known), None)


def save_nodes(
    path: Path,
    summaries: Sequence[TargetSummary],
    labels: Sequence[str],
    folder: Path,
    *,
    dims: Mapping[str, Sequence[int | None]] | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    seed: int = 0,
    force: bool = False,
    on_progress: OnProgress = silent,
) -> tuple[list[SavedNode], list[Finding]]:
    """Writes each node of the model at `path` that a target refuses; the folder appears whole or not at all.

    labels: how the summaries' targets were asked for (`tensorrt@10.1`), each the name of a folder in it.
    dims: bounds by symbol. options: each target's `--option`s.
    Findings: what was written (DK229), nodes that cannot be taken out (DK230).
    Without a refused node there is nothing to write, and no folder. Raises OutputError as `check_folder` does.
    """
    check_folder(folder, force=force)
    wanted = [(s, label, node) for s, label in zip(summaries, labels, strict=True) for node in s.refused]
    if not wanted:
        return [], [note("DK229", f"no node is refused: nothing was written to {folder}")]
    model = graph.load(path)
    writer = _Writer(path, model, dims or {}, options or {}, seed)
    with contextlib.suppress(_NothingError), io.staged(folder, force=True) as staging:
        staging.mkdir()
        for done, (summary, label, node) in enumerate(wanted):
            on_progress(Progress("saving nodes", node.node, done, len(wanted)))
            writer.write(staging, summary, label, node)
        if not writer.saved:
            raise _NothingError
        _describe(staging, path, writer.saved, seed)
    if not writer.saved:
        return [], writer.findings
    named = f"{len(writer.saved)} refused node{'s' if len(writer.saved) > 1 else ''}"
    told = note("DK229", f"{named} written to {folder}, each as a model with inputs", hint=f"read {folder / README}")
    return writer.saved, [told, *writer.findings]


class _NothingError(Exception):
    """Leaves the staging context without publishing: no node could be taken out."""


class _Writer:
    """Writes nodes of one model; what is the same for nodes alike is found out once."""

    def __init__(
        self, path: Path, model: ir.Model, dims: Mapping[str, Any], options: Mapping[str, Any], seed: int
    ) -> None:
        self.saved: list[SavedNode] = []
        self.findings: list[Finding] = []
        self._path = path
        self._dims = dims
        self._options = options
        self._seed = seed
        self._nodes = NodeModels(model)
        self._sized = NodeModels(model, dims=sizes_of(model, dims))
        self._taken: dict[str, set[str]] = {}
        self._alone: dict[tuple[str, str], bool] = {}

    def write(self, folder: Path, summary: TargetSummary, label: str, node: NodeVerdict) -> None:
        try:
            alone = self._nodes.take(node.node)
            sizes = matched_sizes(alone, self._sized.take(node.node))
        except ModelError as problem:
            place = {"target": label, "node": node.node, "op": node.op, "scope": node.scope}
            self.findings.append(warning("DK230", f"not written: {problem.message}", hint=problem.hint, **place))
            return
        stem = f"{safe_name(label, set())}/{safe_name(node.node, self._taken.setdefault(label, set()))}"
        file = folder / f"{stem}.onnx"
        file.parent.mkdir(exist_ok=True)
        written = graph.save(alone, file)
        files = [f"{Path(stem).parent.as_posix()}/{name}" for name in written]
        reference, arrays = self._run(file, sizes, folder / stem)
        refused = self._refused_alone(summary, file, identity(alone))
        model = file.relative_to(folder).as_posix() if refused else str(self._path)
        self.saved.append(
            SavedNode(
                target=label,
                node=node.node,
                op=node.operator,
                reason=node.verdict.reason,
                source=node.verdict.source,
                files=(*files, *(f"{stem}.{name}" for name in arrays)),
                alone=refused,
                command=shlex.join(["deploykit", "check", model, "--target", label, *self._extension(summary)]),
                reference=reference,
                scope=node.scope,
            )
        )

    def _extension(self, summary: TargetSummary) -> list[str]:
        library = self._options.get(summary.target.name, {}).get("custom_ops")
        return ["--custom-ops", str(library)] if library else []

    def _run(self, file: Path, sizes: Mapping[str, int], stem: Path) -> tuple[str, list[str]]:
        """Writes inputs, and outputs where the reference runs; why it does not, and what was written."""
        runner = get_target("onnxruntime")
        bounds = {name: list(self._dims.get(name, [size, size])) for name, size in sizes.items()}
        with io.scratch_folder(stem.parent) as scratch:
            library = self._options.get(runner.name, {}).get("custom_ops")
            arguments = {
                "model": str(file),
                "dims": bounds,
                "seed": self._seed,
                "folder": scratch,
                "options": {"custom_ops": {runner.name: library}} if library else {},
            }
            try:
                answer = run_isolated(comparison_worker(runner), _TRIAL, arguments, timeout=RUN_SECONDS)
            except DeploykitError as problem:  # a crash or a hang of the reference is no reason to lose the node
                answer = {"reference": problem.message}
            made = []
            for name in ("inputs.npz", "outputs.npz"):
                if (Path(scratch) / name).is_file():
                    (Path(scratch) / name).rename(stem.parent / f"{stem.name}.{name}")
                    made.append(name)
        return answer["reference"], made

    def _refused_alone(self, summary: TargetSummary, file: Path, alike: str) -> bool:
        """Whether the target refuses the written model, too: some refusals are about what is around a node."""
        name = summary.target.name + (f"@{summary.version}" if summary.version else "")
        if (name, alike) not in self._alone:
            (again,) = check_model(file, [name], options=self._options)
            self._alone[name, alike] = any(node.verdict.status is Status.UNSUPPORTED for node in again.nodes)
        return self._alone[name, alike]


def safe_name(name: str, taken: set[str]) -> str:
    """A file name for a node name, which may be a path, hostile, long or like another but for its case.

    Letters, digits, `.`, `_` and `-` stay; where anything else was replaced or the name is taken, a digest makes it one
    of its own. The name is added to `taken`.
    """
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._-")
    short = plain[:_LONGEST] or "node"
    if short != name or short.lower() in taken or short.lower().partition(".")[0] in _RESERVED:
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
        short = f"{short}-{digest[:8]}"
        while short.lower() in taken:  # the same name again, for another target's folder has names of its own
            digest = hashlib.sha256(digest.encode()).hexdigest()
            short = f"{short[:_LONGEST]}-{digest[:8]}"
    taken.add(short.lower())
    return short


def _describe(folder: Path, path: Path, saved: Sequence[SavedNode], seed: int) -> None:
    index = {"schema": SCHEMA, "model": path.name, "seed": seed, "nodes": [entry.as_dict() for entry in saved]}
    (folder / INDEX).write_text(json.dumps(index, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    lines = [_HEAD.format(model=path.name, seed=seed, index=INDEX)]
    for entry in saved:
        where = f" in {entry.scope}" if entry.scope else ""
        said = f" (says {entry.source})" if entry.source and entry.source not in entry.reason else ""
        lines += [
            f"{entry.files[0]}",
            f"  node {entry.node!r} ({entry.op}){where}",
            f"  {entry.target} refuses it: {' '.join(entry.reason.split())}{said}",
            f"  {entry.command}",
        ]
        if not entry.alone:
            lines.append("  Alone it is not refused: what is around it decides, so the command checks the whole model.")
        if entry.reference:
            lines.append(f"  No outputs: the reference does not run it ({' '.join(entry.reference.split())[:300]})")
        lines.append("")
    (folder / README).write_text("\n".join(lines), encoding="utf-8", errors="backslashreplace")
