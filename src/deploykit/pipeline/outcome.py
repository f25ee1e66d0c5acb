"""What became of each step of a run."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal

from deploykit.errors import ExitCode
from deploykit.report import Finding, Report, finding_of

if TYPE_CHECKING:
    from pathlib import Path

    from deploykit.pipeline.plan import Step

Status = Literal["done", "cached", "failed", "skipped", "planned"]


@dataclasses.dataclass(slots=True)
class Outcome:
    """One step's result.

    path: of its artifact in the store. published: where the artifact was copied to. subjects: keys of the steps whose
    artifacts it took, in order (the benchmark leaves out what was not made).
    """

    step: Step
    status: Status
    report: Report | None = None
    reason: str = ""
    seconds: float = 0.0
    exit_code: ExitCode = ExitCode.OK
    path: Path | None = None
    published: Path | None = None
    subjects: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether what follows may use the result."""
        return self.status in ("done", "cached") and (self.report is None or not self.report.failed)

    @property
    def metrics(self) -> dict[str, Any]:
        """The report's metrics; empty without a report."""
        return self.report.metrics if self.report else {}

    def findings(self) -> list[Finding]:
        """The step's findings and its error, each with the target that it concerns."""
        if self.report is None:
            return []
        found = list(self.report.findings)
        if self.report.error is not None:
            found.append(finding_of(self.report.error))
        return [dataclasses.replace(finding, target=finding.target or self.step.target) for finding in found]
