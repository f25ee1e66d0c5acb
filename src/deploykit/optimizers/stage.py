"""The simplify stage: every engine in its own worker; the smallest result that is proven equal, or the original."""

from __future__ import annotations

import concurrent.futures
import contextvars
import dataclasses
import functools
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from deploykit import graph, io
from deploykit.errors import DeploykitError, GateError, MissingDependencyError, ModelError, VendorError
from deploykit.isolation import run_isolated, workers
from deploykit.lazy import installed, missing, versions_of
from deploykit.progress import OnProgress, Progress
from deploykit.report import Finding, note, warning
from deploykit.stage import Product, Stage, Verification

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.artifact import Artifact

Engine = Literal["auto", "native", "onnxsim", "onnxslim"]
ENGINES: dict[str, tuple[str, ...]] = {
    "native": ("onnxscript",),
    "onnxslim": ("onnxslim",),
    "onnxsim": ("onnxsim",),
}
# onnxsim imports torch when it can (1.1 s), and nothing of it is needed.
BLOCKED = ("torch", "tensorflow", "torchvision")
# A crash or an endless loop of one engine is a line in the report.
TIMEOUT_SECONDS = 600.0
# These take the whole model as one protobuf message, which ends at 2 GB, and copy it several times.
_IN_ONE_MESSAGE = ("onnxsim", "onnxslim")
LARGEST_MESSAGE = 1_900_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """What one engine made: computing nodes, bytes with external data, and the files."""

    engine: str
    path: Path
    nodes: int
    size: int
    files: tuple[str, ...]
    versions: Mapping[str, str]


@dataclasses.dataclass(frozen=True, slots=True)
class Fused:
    """What onnxruntime's fusions made: fused operators with their number, and those that only onnxruntime has."""

    candidate: Candidate
    outcome: dict[str, Any]
    kind: str
    operators: Mapping[str, int]
    contrib: Sequence[str]

    def findings(self, before: Candidate) -> list[Finding]:
        """Which fusions there are, and where the file runs now."""
        named = ", ".join(f"{count} {operator}" for operator, count in self.operators.items())
        text = f"fused as a {self.kind} model: {named}; {before.nodes} nodes became {self.candidate.nodes}"
        found = [note("DK645", f"{text}; outputs equal on {self.outcome['samples']} random inputs")]
        if self.contrib:
            text = f"the file runs on onnxruntime only: {', '.join(self.contrib)} are its own operators (com.microsoft)"
            found.append(note("DK647", text, hint="leave --fuse away for other targets"))
        return found


class SimplifyStage(Stage):
    """ONNX to a smaller, equal ONNX."""

    name = "simplify"

    def __init__(
        self, engine: Engine, max_growth: float, dims: Mapping[str, int], seed: int, *, fuse: bool = False
    ) -> None:
        """dims: numbers for symbolic dimensions. max_growth: of the file, against the original.

        fuse: onnxruntime's transformer fusions after the engine; what they make runs on onnxruntime only.
        """
        self.engine = engine
        self.max_growth = max_growth
        self.dims = dict(dims)
        self.seed = seed
        self.fuse = fuse

    @property
    def options(self) -> dict[str, Any]:
        """As given."""
        given = {"engine": self.engine, "max_growth": self.max_growth, "dims": self.dims, "seed": self.seed}
        return {**given, "fuse": True} if self.fuse else given

    def run(self, inputs: Mapping[str, Artifact], output: Path, on_progress: OnProgress) -> Product:
        """Writes the winner at `output`, or the original when nothing was gained."""
        original = inputs["model"]
        findings: list[Finding] = []
        with io.scratch_folder() as folder:
            scratch = Path(folder)
            base = self._fixed(original.path, scratch)
            before = self._measured(base, original, findings)
            names = self._engines(before.size, findings)
            candidates = self._attempts(names, base, scratch, findings, on_progress)
            winner, outcome = self._choose(candidates, base, before, findings, on_progress)
            chosen, fused = winner or before, None
            if self.fuse and (fused := self._fused(chosen, before, scratch, findings, on_progress)) is not None:
                chosen, outcome = fused.candidate, fused.outcome
            files = _copy(chosen, output)
        if winner is None and fused is None:
            findings.append(note("DK640", "nothing was gained: the model is kept as it was"))
        metrics = {
            "engine": "none" if winner is None else winner.engine,
            "nodes": {"before": before.nodes, "after": chosen.nodes},
            "bytes": {"before": before.size, "after": chosen.size},
            "candidates": [
                {"engine": c.engine, "nodes": c.nodes, "bytes": c.size} for c in sorted(candidates, key=_rank)
            ],
            **({"fusions": fused.operators if fused else {}} if self.fuse else {}),
            "parity": {"outputs": outcome.get("outputs", []), "samples": outcome.get("samples", 0)},
        }
        described = graph.describe(output)
        return Product(
            "onnx",
            inputs=described.inputs,
            outputs=described.outputs,
            precision=original.precision,
            target="onnxruntime" if fused and fused.contrib else original.target,
            opset=described.opset,
            execution="real" if outcome.get("samples") else "none",
            files=files,
            tool_versions={**versions_of("onnxruntime"), **chosen.versions},
            findings=findings,
            metrics=metrics,
        )

    def ensures(self, inputs: Mapping[str, Artifact], made: Artifact, on_progress: OnProgress) -> Verification:
        """Nothing more: a candidate is only chosen after its proof in `run`, and the original needs none."""
        return Verification()

    def _fixed(self, model: Path, scratch: Path) -> Path:
        """The model with the dimensions fixed that `dims` names: what the candidates are compared with."""
        if not self.dims:
            return model
        folder = scratch / "fixed"
        folder.mkdir()
        run_isolated(
            "simplify-native",
            "deploykit.optimizers.engines:fix_dims_job",
            {"model": str(model), "output": str(folder / model.name), "dims": self.dims},
        )
        return folder / model.name

    def _measured(self, base: Path, original: Artifact, findings: list[Finding]) -> Candidate:
        described = original if base == original.path else graph.describe(base)
        facts = run_isolated("simplify-native", "deploykit.optimizers.engines:measure_job", {"model": str(base)})
        if facts["random"]:
            text = f"the model draws random numbers in {', '.join(facts['random'])}: they stay as they are"
            findings.append(warning("DK630", text))
        return Candidate("none", base, facts["nodes"], described.size_bytes, described.files, {})

    def _attempts(
        self, names: Sequence[str], base: Path, scratch: Path, findings: list[Finding], on_progress: OnProgress
    ) -> list[Candidate]:
        """One candidate of each engine that worked, all running at once; what failed is a finding."""
        on_progress(Progress("simplifying", ", ".join(names)))
        candidates: list[Candidate] = []
        with workers() as pool, concurrent.futures.ThreadPoolExecutor(len(names)) as threads:
            # A thread starts with an empty context: the pool of workers has to be handed on.
            futures = {
                name: threads.submit(contextvars.copy_context().run, functools.partial(_attempt, name, base, scratch))
                for name in names
            }
            try:
                for name, future in futures.items():
                    self._collect(name, future, candidates, findings)
            except BaseException:
                # Threads wait for their workers: those have to end first, or Ctrl-C would wait for the slowest.
                for name in names:
                    pool.get(worker_of(name)).kill()
                raise
        return candidates

    def _collect(
        self,
        name: str,
        future: concurrent.futures.Future[Candidate],
        candidates: list[Candidate],
        findings: list[Finding],
    ) -> None:
        try:
            candidates.append(future.result())
        except VendorError as problem:
            if self.engine != "auto":
                raise
            findings.append(note("DK641", f"{name} failed and was left out: {problem.message[:300]}"))
        except DeploykitError as problem:
            if self.engine != "auto":
                raise
            findings.append(note("DK641", f"{name} gave no usable model: {problem.message[:300]}"))

    def _engines(self, size: int, findings: list[Finding]) -> list[str]:
        """The engines to try on a model of `size` bytes."""
        if self.engine != "auto":
            absent = [package for package in ENGINES[self.engine] if not installed(package)]
            if absent:
                raise missing(absent[0], "simplify", f"--engine {self.engine}")
            if self.engine in _IN_ONE_MESSAGE and size > LARGEST_MESSAGE:
                raise ModelError(
                    f"the model has {size} bytes, and {self.engine} takes models of less than 2 GB",
                    code="DK637",
                    hint="--engine native",
                )
            return [self.engine]
        ready = [name for name, packages in ENGINES.items() if all(map(installed, packages))]
        if not ready:
            raise missing("onnxsim", "simplify", "simplifying")
        if size > LARGEST_MESSAGE:
            ready = [name for name in ready if name not in _IN_ONE_MESSAGE]
            text = f"the model has more than 2 GB, so these were not tried: {', '.join(_IN_ONE_MESSAGE)}"
            findings.append(note("DK637", text))
            if not ready:
                raise missing("onnxscript", "simplify", "simplifying models of more than 2 GB")
            return ready
        left = [name for name in ENGINES if name not in ready]
        if left:
            text = f"not installed, so not tried: {', '.join(left)}"
            findings.append(note("DK642", text, hint="pip install 'deploykit[simplify]'"))
        return ready

    def _choose(
        self,
        candidates: Sequence[Candidate],
        base: Path,
        before: Candidate,
        findings: list[Finding],
        on_progress: OnProgress,
    ) -> tuple[Candidate | None, dict[str, Any]]:
        """The smallest candidate that is proven, with its proof; None when none is smaller than the original."""
        for candidate in sorted(candidates, key=_rank):
            refused = self._refusal(candidate, before)
            if refused is not None:
                self._turn_down(candidate, refused, findings)
                continue
            outcome, wrong = self._proof(candidate, base, findings, on_progress)
            if wrong:
                self._turn_down(candidate, wrong, findings)
                continue
            findings.append(_gained(candidate, before, outcome))
            return candidate, outcome
        return None, {}

    def _proof(
        self, candidate: Candidate, base: Path, findings: list[Finding], on_progress: OnProgress
    ) -> tuple[dict[str, Any], str]:
        """The comparison with the original, and why the candidate is not it; its findings are kept when it is."""
        on_progress(Progress("comparing", candidate.engine))
        try:
            outcome = run_isolated(
                worker_of(candidate.engine),
                "deploykit.optimizers.engines:verify_job",
                {"original": str(base), "candidate": str(candidate.path), "dims": {}, "seed": self.seed},
                block=BLOCKED,
                timeout=TIMEOUT_SECONDS,
                on_progress=on_progress,
            )
        except MissingDependencyError:
            raise
        except DeploykitError as problem:
            return {}, f"it does not run: {problem.message[:300]}"
        found = [Finding.from_dict(facts) for facts in outcome["findings"]]
        wrong = [finding.message for finding in found if finding.severity == "error"]
        if not outcome["compared"] and not wrong:
            wrong = ["it could not be run, so nothing proves it"]
        if not wrong:
            findings += [finding for finding in found if finding.code != "DK630"]
        return outcome, "; ".join(wrong)[:500]

    def _fused(
        self, chosen: Candidate, before: Candidate, scratch: Path, findings: list[Finding], on_progress: OnProgress
    ) -> Fused | None:
        """The chosen model with onnxruntime's transformer fusions, if there are any and the result is proven equal."""
        on_progress(Progress("fusing", "onnxruntime.transformers"))
        path = scratch / "fused" / before.path.name
        path.parent.mkdir()
        try:
            facts = run_isolated(
                worker_of("fuse"),
                "deploykit.optimizers.fusions:fuse_job",
                {"models": [str(chosen.path), str(before.path)], "output": str(path)},
                block=BLOCKED,
                timeout=TIMEOUT_SECONDS,
            )
        except VendorError as problem:
            findings.append(warning("DK648", f"the fusions failed and were left out: {problem.message[:300]}"))
            return None
        if not facts.get("fusions"):
            kind = facts["model_type"]
            why = f"no fusion fits this {kind} graph" if kind else "the graph has no attention that is recognised"
            findings.append(note("DK646", f"nothing was fused: {why}"))
            return None
        candidate = Candidate(
            "fuse",
            path,
            facts["nodes"],
            facts["bytes"],
            tuple(facts["files"]),
            {**chosen.versions, **facts["versions"]},
        )
        growth = self._growth(candidate, before)
        outcome, wrong = ({}, growth) if growth else self._proof(candidate, before.path, findings, on_progress)
        if wrong:
            findings.append(warning("DK648", f"the fusions are not used: {wrong}"))
            return None
        found = Fused(candidate, outcome, facts["model_type"], facts["fusions"], facts["contrib"])
        findings += found.findings(chosen)
        return found

    def _refusal(self, candidate: Candidate, before: Candidate) -> str | None:
        if growth := self._growth(candidate, before):
            return growth
        return "it is no smaller" if _rank(candidate) >= _rank(before) else None

    def _growth(self, candidate: Candidate, before: Candidate) -> str:
        """Why the file is too large; empty when it is not."""
        if candidate.size <= before.size * self.max_growth:
            return ""
        times = candidate.size / max(before.size, 1)
        return f"the file would be {times:.2f} times as large ({self.max_growth:g} is allowed)"

    def _turn_down(self, candidate: Candidate, why: str, findings: list[Finding]) -> None:
        """A candidate that is not used: a note where others are left, a failure of the gate when it was asked for."""
        if self.engine != "auto" and why != "it is no smaller":
            raise GateError(
                f"{candidate.engine} does not keep the model: {why}",
                code="DK643",
                hint="--engine auto takes another engine, or keeps the model as it is",
            )
        findings.append(note("DK643", f"the result of {candidate.engine} is not used: {why}"))


def _rank(candidate: Candidate) -> tuple[int, int]:
    return candidate.nodes, candidate.size


def worker_of(engine: str) -> str:
    """Name of the worker that an engine runs in."""
    return f"simplify-{engine}"


def _attempt(engine: str, base: Path, scratch: Path) -> Candidate:
    folder = scratch / engine
    folder.mkdir()
    path = folder / base.name
    facts = run_isolated(
        worker_of(engine),
        "deploykit.optimizers.engines:simplify_job",
        {"engine": engine, "model": str(base), "output": str(path)},
        block=BLOCKED,
        timeout=TIMEOUT_SECONDS,
    )
    return Candidate(engine, path, facts["nodes"], facts["bytes"], tuple(facts["files"]), facts["versions"])


def _copy(chosen: Candidate, output: Path) -> tuple[str, ...]:
    """Writes the chosen model at `output`; with external data it is saved anew, so that the data's name fits."""
    if len(chosen.files) <= 1:
        shutil.copyfile(chosen.path, output)
        return (output.name,)
    return graph.save(graph.load(chosen.path), output)


def _gained(candidate: Candidate, before: Candidate, outcome: Mapping[str, Any]) -> Finding:
    text = (
        f"{candidate.engine}: {before.nodes} nodes became {candidate.nodes}, {before.size} bytes {candidate.size}; "
        f"outputs equal on {outcome['samples']} random inputs"
    )
    return note("DK644", text)
