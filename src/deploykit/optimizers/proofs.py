"""Candidates compared with the original, in the native engine's worker; each once, the original once for all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deploykit.errors import DeploykitError, MissingDependencyError
from deploykit.isolation import run_isolated
from deploykit.optimizers.candidates import BLOCKED, TIMEOUT_SECONDS, Candidate, worker_of
from deploykit.progress import OnProgress, Progress, silent
from deploykit.report import Finding

if TYPE_CHECKING:
    from pathlib import Path

UNPROVEN = "it could not be run, so nothing proves it"


class Proofs:
    """The comparisons of one original with its candidates."""

    def __init__(self, base: Path, seed: int) -> None:
        """base: the original, with what was to be fixed. Nothing runs yet."""
        self._base = base
        self._seed = seed
        self._known: dict[Path, dict[str, Any] | DeploykitError] = {}

    def ahead(self, candidate: Candidate) -> None:
        """Compares what is likely to win while other engines work; what comes out is told by `of`."""
        if candidate.nodes < candidate.original["nodes"]:
            self._compare(candidate, silent, several=True)

    def of(self, candidate: Candidate, findings: list[Finding], on_progress: OnProgress) -> tuple[dict[str, Any], str]:
        """The comparison, and why the candidate is not the original; what it found is kept when it is."""
        on_progress(Progress("comparing", candidate.engine))
        if candidate.path not in self._known:
            self._compare(candidate, on_progress)
        outcome = self._known[candidate.path]
        if isinstance(outcome, MissingDependencyError):
            raise outcome
        if isinstance(outcome, DeploykitError):
            return {}, f"it does not run: {outcome.message[:300]}"
        found = [Finding.from_dict(facts) for facts in outcome["findings"]]
        wrong = [finding.message for finding in found if finding.severity == "error"]
        if not wrong:
            said = [finding.message for finding in findings]
            findings += [finding for finding in found if finding.code != "DK630" and finding.message not in said]
        if not outcome["compared"] and not wrong:
            return outcome, UNPROVEN
        return outcome, "; ".join(wrong)[:500]

    def _compare(self, candidate: Candidate, on_progress: OnProgress, *, several: bool = False) -> None:
        given = {"original": str(self._base), "candidate": str(candidate.path), "dims": {}, "seed": self._seed}
        try:
            # In the worker that has all of it imported, whichever engine's candidate it is.
            self._known[candidate.path] = run_isolated(
                worker_of("native"),
                "deploykit.optimizers.engines:verify_job",
                {**given, "several": several},
                block=BLOCKED,
                timeout=TIMEOUT_SECONDS,
                on_progress=on_progress,
            )
        except DeploykitError as problem:
            self._known[candidate.path] = problem
