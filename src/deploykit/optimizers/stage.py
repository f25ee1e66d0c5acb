"""The simplify stage: every engine in its own worker; the smallest result that is proven equal, or the original."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from deploykit import io
from deploykit.artifact import TensorSpec
from deploykit.errors import DeploykitError, GateError, VendorError
from deploykit.isolation import run_isolated
from deploykit.lazy import versions_of
from deploykit.optimizers.candidates import (
    BLOCKED,
    TIMEOUT_SECONDS,
    Candidate,
    attempt,
    attempts,
    described,
    engines_for,
    left_out,
    presented,
    release,
    worker_of,
)
from deploykit.optimizers.proofs import UNPROVEN, Proofs
from deploykit.progress import OnProgress, Progress
from deploykit.report import Finding, note, warning
from deploykit.stage import Product, Stage, Verification

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.artifact import Artifact

Engine = Literal["auto", "native", "onnxsim", "onnxslim"]
# The names of nodes and constants that take part in a simplification weigh more than that in a small file.
ALLOWANCE = 4096
# Some bytes come and go with every writing of a file.
_WORTH_WRITING = 0.99
_NO_SMALLER = "it is no smaller"


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
            start = original if base == original.path else described(base)
            names = engines_for(self.engine, start.size_bytes, findings)
            proofs = Proofs(base, self.seed)
            candidates = attempts(names, base, scratch, findings, on_progress, proofs.ahead)
            before = self._measured(start, candidates, findings)
            winner, outcome = self._choose(candidates, before, proofs, findings, on_progress)
            chosen, fused = winner or before, None
            if self.fuse and (fused := self._fused(chosen, before, scratch, proofs, findings, on_progress)) is not None:
                chosen, outcome = fused.candidate, fused.outcome
            files = _copy(chosen, output)
        if winner is None and fused is None:
            findings.append(note("DK640", "nothing was gained: the model is kept as it was"))
        metrics = {
            "engine": "none" if winner is None else winner.engine,
            "nodes": {"before": before.nodes, "after": chosen.nodes},
            "bytes": {"before": before.size, "after": chosen.size},
            "candidates": [
                {"engine": found.engine, "nodes": found.nodes, "bytes": found.size}
                for found in sorted(candidates, key=lambda found: found.rank)
            ],
            **({"fusions": fused.operators if fused else {}} if self.fuse else {}),
            "parity": {"outputs": outcome.get("outputs", []), "samples": outcome.get("samples", 0)},
        }
        shown = chosen.interface or described(output).as_dict()
        return Product(
            "onnx",
            inputs=tuple(map(TensorSpec.from_dict, shown["inputs"])),
            outputs=tuple(map(TensorSpec.from_dict, shown["outputs"])),
            precision=original.precision,
            target="onnxruntime" if fused and fused.contrib else original.target,
            opset=shown["opset"],
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
            worker_of("native"),
            "deploykit.optimizers.engines:fix_dims_job",
            {"model": str(model), "output": str(folder / model.name), "dims": self.dims},
            block=BLOCKED,
        )
        return folder / model.name

    def _measured(self, start: Artifact, candidates: Sequence[Candidate], findings: list[Finding]) -> Candidate:
        """The original, to be compared with; its facts come with any candidate."""
        facts = next((dict(candidate.original) for candidate in candidates if candidate.original), None)
        if facts is None:
            job = "deploykit.optimizers.engines:measure_job"
            facts = run_isolated(worker_of("native"), job, {"model": str(start.path)}, block=BLOCKED)
        if facts["random"]:
            text = f"the model draws random numbers in {', '.join(facts['random'])}: they stay as they are"
            findings.append(warning("DK630", text))
        shown = start.as_dict()
        return Candidate("none", start.path, facts["nodes"], start.size_bytes, start.files, {}, facts, shown)

    def _choose(
        self,
        candidates: list[Candidate],
        before: Candidate,
        proofs: Proofs,
        findings: list[Finding],
        on_progress: OnProgress,
    ) -> tuple[Candidate | None, dict[str, Any]]:
        """The smallest candidate that is proven, with its proof; None when none is smaller than the original.

        Those that are presented for it take the place of their raw ones.
        """
        waiting = list(candidates)
        while waiting:
            # Of equally many nodes the fewest bytes win, and those are known once it is presented.
            candidate = min(waiting, key=lambda found: (found.nodes, not found.raw, found.size))
            waiting.remove(candidate)
            if candidate.raw:
                place = candidates.index(candidate)
                try:
                    candidates[place] = presented(candidate, before.path)
                except DeploykitError as problem:
                    findings.append(left_out(candidate.engine, problem))
                    del candidates[place]
                else:
                    waiting.append(candidates[place])
                continue
            outcome: dict[str, Any] = {}
            wrong = self._refusal(candidate, before)
            if not wrong:
                outcome, wrong = proofs.of(candidate, findings, on_progress)
            if not wrong:
                findings.append(_gained(candidate, before, outcome))
                return candidate, outcome
            if candidate.engine == "native" and not candidate.exact and wrong not in (_NO_SMALLER, UNPROVEN):
                # Weights that were multiplied together round otherwise; the other passes change no value.
                findings.append(note("DK661", f"native once more, without what changes rounding: {wrong}"))
                waiting.append(attempt("native", before.path, candidate.path.parents[1], exact=True))
                continue
            self._turn_down(candidate, wrong, findings)
        return None, {}

    def _fused(
        self,
        chosen: Candidate,
        before: Candidate,
        scratch: Path,
        proofs: Proofs,
        findings: list[Finding],
        on_progress: OnProgress,
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
        release(worker_of("fuse"))
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
            before.original,
        )
        growth = self._growth(candidate, before)
        outcome, wrong = ({}, growth) if growth else proofs.of(candidate, findings, on_progress)
        if wrong:
            findings.append(warning("DK648", f"the fusions are not used: {wrong}"))
            return None
        found = Fused(candidate, outcome, facts["model_type"], facts["fusions"], facts["contrib"])
        findings += found.findings(chosen)
        return found

    def _refusal(self, candidate: Candidate, before: Candidate) -> str:
        if growth := self._growth(candidate, before):
            return growth
        smaller = candidate.size < min(_WORTH_WRITING * before.size, before.size - ALLOWANCE)
        gained = candidate.nodes < before.nodes or (candidate.nodes == before.nodes and smaller)
        return "" if gained else _NO_SMALLER

    def _growth(self, candidate: Candidate, before: Candidate) -> str:
        """Why the file is too large; empty when it is not."""
        if candidate.size <= max(before.size * self.max_growth, before.size + ALLOWANCE):
            return ""
        times = candidate.size / max(before.size, 1)
        return f"the file would be {times:.2f} times as large ({self.max_growth:g} is allowed)"

    def _turn_down(self, candidate: Candidate, why: str, findings: list[Finding]) -> None:
        """A candidate that is not used: a note where others are left, a failure of the gate when it was asked for."""
        if self.engine != "auto" and why not in (_NO_SMALLER, UNPROVEN):
            raise GateError(
                f"{candidate.engine} does not keep the model: {why}",
                code="DK643",
                hint="--engine auto takes another engine, or keeps the model as it is",
            )
        findings.append(note("DK643", f"the result of {candidate.engine} is not used: {why}"))


def _copy(chosen: Candidate, output: Path) -> tuple[str, ...]:
    """Writes the chosen model at `output`; with external data it is saved anew, so that the data's name fits."""
    if len(chosen.files) <= 1:
        shutil.copyfile(chosen.path, output)
        return (output.name,)
    job = "deploykit.optimizers.engines:copy_job"
    given = {"model": str(chosen.path), "output": str(output)}
    return tuple(run_isolated(worker_of("native"), job, given, block=BLOCKED))


def _gained(candidate: Candidate, before: Candidate, outcome: Mapping[str, Any]) -> Finding:
    text = (
        f"{candidate.engine}: {before.nodes} nodes became {candidate.nodes}, "
        f"{before.size:,} bytes became {candidate.size:,}; "
        f"outputs equal on {outcome['samples']} random inputs"
    )
    return note("DK644", text)
