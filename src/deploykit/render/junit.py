"""JUnit XML, which CI systems show as tests: one case for each thing that was judged."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

from deploykit.render import targets
from deploykit.render.grouping import grouped
from deploykit.report import failure, finding_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deploykit.report import Finding, Report

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(report: Report) -> str:
    """A test suite for the command; one case for each target or artifact, failed by its error findings."""
    findings = [*report.findings, *([finding_of(report.error)] if report.error else [])]
    cases = _cases(report, findings)
    open_ones = _open(report)
    skipped = [name for name in cases if name in open_ones and not _failed(cases[name])]
    failures = sum(map(bool, map(_failed, cases.values())))
    errors = failures if report.status == "error" else 0
    suite = ET.Element(
        "testsuite",
        name=f"deploykit {report.command}",
        tests=str(len(cases)),
        failures=str(failures - errors),
        errors=str(errors),
        skipped=str(len(skipped)),
        time=f"{report.seconds:.3f}",
    )
    for name, found in cases.items():
        case = ET.SubElement(suite, "testcase", name=_xml(name), classname=f"deploykit.{report.command}")
        if name in skipped:
            ET.SubElement(case, "skipped", message=_xml(open_ones[name]))
        _outcome(case, found, "error" if report.status == "error" else "failure")
    ET.indent(suite)
    return f"<?xml version='1.0' encoding='utf-8'?>\n{ET.tostring(suite, encoding='unicode')}\n"


def _cases(report: Report, findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    """What was judged, by name, with the findings about it: outputs, artifacts, targets, or the command itself."""
    cases: dict[str, list[Finding]] = {}
    if report.command == "check":
        cases = {label: [] for label in targets.labels(report.metrics.get("targets", []))}
        for block in targets.blocks(report, findings):
            cases.setdefault(block.label or report.command, []).extend(block.findings)
        return cases or {report.command: []}
    for row in report.metrics.get("outputs", []):
        cases[str(row["name"])] = []
    for row in report.metrics.get("rows", []):
        name = f"{row['target']} {row['precision']}" if "target" in row else str(row.get("artifact"))
        cases[name] = []
        if row.get("status", "passed") != "passed":
            cases[name].append(failure("DK400", f"{name}: {row['status']}", hint=row.get("reason") or ""))
    for finding in findings:
        name = finding.tensor if finding.tensor in cases else finding.target or report.command
        cases.setdefault(str(name), []).append(finding)
    return cases or {report.command: []}


def _open(report: Report) -> dict[str, str]:
    """Targets of a check that nobody could judge, and why: neither passed nor failed."""
    rows = report.metrics.get("targets", []) if report.command == "check" else []
    return {
        label: f"{row['unknown']} of {row['nodes']} nodes are unknown" if row["unknown"] else "its engine failed"
        for label, row in zip(targets.labels(rows), rows, strict=True)
        if row["verdict"] == "unknown"
    }


def _failed(findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity == "error"]


def _outcome(case: ET.Element, findings: list[Finding], kind: str) -> None:
    failed = _failed(findings)
    if failed:
        element = ET.SubElement(case, kind, message=_xml(failed[0].message), type=failed[0].code)
        element.text = _xml(_lines(failed))
    rest = [finding for finding in findings if finding.severity != "error"]
    if rest:
        ET.SubElement(case, "system-out").text = _xml(_lines(rest))


def _lines(findings: Iterable[Finding]) -> str:
    """What is said, once for all places that it is said of."""
    lines = []
    for group in grouped(findings):
        head = group.findings[0]
        lines.append(f"{head.severity}[{head.code}]: {head.message}")
        lines += [f"  --> {place}" for place in group.places]
        lines += [f"  hint: {head.hint}"] if head.hint else []
    return "\n".join(lines)


def _xml(text: str) -> str:
    """Text without the characters that XML 1.0 cannot hold."""
    return _FORBIDDEN.sub("\ufffd", text)
