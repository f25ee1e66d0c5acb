"""Finding and Report: the evidence every command returns, rendered by `deploykit.render`."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Literal

from deploykit.errors import DeploykitError, ExitCode, VendorError
from deploykit.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deploykit.artifact import Artifact

Severity = Literal["error", "warning", "note"]
SCHEMA = "deploykit.report/1"


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One observation with a stable code, its place and what to do.

    scope: the module of the source program that the node came from, where the exporter recorded it.
    """

    code: str
    severity: Severity
    message: str
    hint: str = ""
    target: str | None = None
    node: str | None = None
    op: str | None = None
    tensor: str | None = None
    scope: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """JSON form, keys as in the contract."""
        return {
            "code": self.code,
            "severity": self.severity,
            "target": self.target,
            "node": self.node,
            "op": self.op,
            "tensor": self.tensor,
            "message": self.message,
            "hint": self.hint,
            "scope": self.scope,
        }

    @classmethod
    def from_dict(cls, facts: dict[str, Any]) -> Finding:
        """The finding that `as_dict` wrote."""
        return cls(**facts)


def note(code: str, message: str, **facts: Any) -> Finding:
    """A finding that only informs."""
    return Finding(code, "note", message, **facts)


def warning(code: str, message: str, **facts: Any) -> Finding:
    """A finding that `--strict` turns into a failure."""
    return Finding(code, "warning", message, **facts)


def failure(code: str, message: str, **facts: Any) -> Finding:
    """A finding that fails its gate: the report's exit code becomes 1."""
    return Finding(code, "error", message, **facts)


@dataclasses.dataclass(slots=True)
class Report:
    """What a command found and made.

    metrics: keys by command, see the JSON contract in docs/json.md.
    forced_exit: an exit code other than the one that follows from the findings (a build bundle: 3 and passed).
    """

    command: str
    artifacts: list[Artifact] = dataclasses.field(default_factory=list)
    findings: list[Finding] = dataclasses.field(default_factory=list)
    metrics: dict[str, Any] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0
    forced_exit: ExitCode | None = None
    error: DeploykitError | None = None

    @property
    def artifact(self) -> Artifact | None:
        """The first artifact, which most commands have one of."""
        return self.artifacts[0] if self.artifacts else None

    @property
    def failed(self) -> bool:
        """Whether a gate failed."""
        return any(finding.severity == "error" for finding in self.findings)

    @property
    def exit_code(self) -> ExitCode:
        """0 or 1 from the findings, unless an error or a stated exception says otherwise."""
        if self.error is not None:
            return self.error.exit_code
        if self.forced_exit is not None:
            return self.forced_exit
        return ExitCode.GATE_FAILED if self.failed else ExitCode.OK

    @property
    def status(self) -> Literal["passed", "failed", "error"]:
        """`error` when the work could not be done, `failed` when a gate failed."""
        if self.error is not None and self.error.exit_code != ExitCode.GATE_FAILED:
            return "error"
        if self.forced_exit is not None and self.forced_exit not in (0, 1, 3):
            return "error"  # of one of several steps, in its finding; 3 is an artifact that is built elsewhere
        return "failed" if self.failed or self.error is not None else "passed"

    def add(self, *findings: Finding) -> None:
        """Appends findings in the order in which they were made."""
        self.findings.extend(findings)

    def tighten(self) -> None:
        """`--strict`: every warning becomes a failure."""
        self.findings = [
            dataclasses.replace(finding, severity="error") if finding.severity == "warning" else finding
            for finding in self.findings
        ]

    def as_dict(self) -> dict[str, Any]:
        """The JSON document of the command; NaN and infinities become null (the findings name them)."""
        findings = [finding.as_dict() for finding in self.findings]
        if self.error is not None:
            findings.append(finding_of(self.error).as_dict())
        document: dict[str, Any] = {
            "schema": SCHEMA,
            "deploykit": __version__,
            "command": self.command,
            "status": self.status,
            "exit_code": int(self.exit_code),
            "artifacts": [artifact.as_dict() for artifact in self.artifacts],
            "artifact": self.artifact.as_dict() if self.artifact else None,
            "findings": findings,
            "metrics": self.metrics,
            "seconds": round(self.seconds, 4),
        }
        if isinstance(self.error, VendorError):
            document["vendor"] = {"log": list(self.error.log), "reproduce": self.error.reproduce}
        ready: dict[str, Any] = finite(document)
        return ready


def finding_of(error: DeploykitError) -> Finding:
    """An error as a finding; its file and context lines go into the message."""
    where = f" ({error.file})" if error.file and error.file not in error.message else ""
    message = "\n".join([error.message + where, *error.context])
    return Finding(error.code, "error", message, error.hint, error.target, error.node, error.op, error.tensor)


def finite(value: Any) -> Any:
    """The value with every float that JSON cannot hold (NaN, infinities) replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


def merge_exit(codes: Iterable[int]) -> ExitCode:
    """The exit code of several outcomes, by precedence 130, 70, 2, 4, 3, 1, 0."""
    order = [130, 70, 2, 4, 3, 1, 0]
    return ExitCode(min(codes, key=order.index, default=0))
