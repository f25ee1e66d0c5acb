"""SARIF 2.1.0, which code-scanning views read: one result for each finding."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from deploykit.explanations import load
from deploykit.render.grouping import where
from deploykit.report import finding_of
from deploykit.version import __version__

if TYPE_CHECKING:
    from deploykit.report import Finding, Report

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def render(report: Report) -> str:
    """A SARIF log with one run; rules carry the explanations of their codes."""
    findings = [*report.findings, *([finding_of(report.error)] if report.error else [])]
    codes = sorted({finding.code for finding in findings})
    file = report.error.file if report.error and report.error.file else report.metrics.get("model")
    run: dict[str, Any] = {
        "tool": {"driver": {"name": "deploykit", "version": __version__, "rules": [_rule(code) for code in codes]}},
        "automationDetails": {"id": f"deploykit/{report.command}/"},
        "invocations": [{"executionSuccessful": report.status != "error", "exitCode": int(report.exit_code)}],
        "results": [_result(finding, codes.index(finding.code), file) for finding in findings],
    }
    document = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _rule(code: str) -> dict[str, Any]:
    entry = load().get(code)
    if entry is None:
        return {"id": code}
    return {
        "id": code,
        "shortDescription": {"text": entry.title},
        "fullDescription": {"text": entry.why},
        "help": {"text": entry.fix},
    }


def _result(finding: Finding, index: int, file: Any) -> dict[str, Any]:
    text = finding.message + (f"\nhint: {finding.hint}" if finding.hint else "")
    place = where(finding)
    location: dict[str, Any] = {}
    if file is not None:
        # A model has no lines, and GitHub shows no result without one.
        artifact = {"uri": _uri(Path(str(file)))}
        location["physicalLocation"] = {"artifactLocation": artifact, "region": {"startLine": 1}}
    if place:
        location["logicalLocations"] = [{"fullyQualifiedName": place}]
    if finding.scope:
        location["logicalLocations"].append({"fullyQualifiedName": finding.scope, "kind": "module"})
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": finding.severity,
        "message": {"text": text},
        "partialFingerprints": {"primaryLocationLineHash": _fingerprint(finding)},
    }
    return {**result, "locations": [location]} if location else result


def _uri(file: Path) -> str:
    """Relative to the folder that the command ran in, where it lies below: viewers join it with their root."""
    if not file.is_absolute():
        return quote(file.as_posix())
    here = Path.cwd()
    return quote(file.relative_to(here).as_posix()) if file.is_relative_to(here) else file.as_uri()


def _fingerprint(finding: Finding) -> str:
    """What makes two results the same problem: GitHub would take all results of a rule in a file without lines for one.

    The message stays outside: it has versions in it.
    """
    identity = json.dumps([finding.code, finding.target, finding.node, finding.op, finding.tensor])
    return f"{hashlib.sha256(identity.encode()).hexdigest()[:16]}:1"
