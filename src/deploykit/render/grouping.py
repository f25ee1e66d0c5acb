"""Findings that say the same about many places, put together."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deploykit.report import Finding

_ORDER = {"error": 0, "warning": 1, "note": 2}


@dataclasses.dataclass(frozen=True, slots=True)
class FindingGroup:
    """Findings with the same code, severity, message and hint, in the order in which they were made."""

    findings: tuple[Finding, ...]


def grouped(findings: Iterable[Finding]) -> list[FindingGroup]:
    """The groups, errors first; within a severity in the order of their first finding."""
    groups: dict[tuple[str, str, str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.severity, finding.code, finding.message, finding.hint), []).append(finding)
    ordered = sorted(groups.values(), key=lambda group: _ORDER[group[0].severity])
    return [FindingGroup(tuple(group)) for group in ordered]


def where(finding: Finding) -> str:
    """The place of a finding on one line: `openvino: node 'conv_3' (Conv), tensor 'x'`; empty without one."""
    parts = []
    if finding.node is not None:
        parts.append(f"node {finding.node!r}" + (f" ({finding.op})" if finding.op else ""))
    elif finding.op is not None:
        parts.append(f"op {finding.op}")
    if finding.tensor is not None:
        parts.append(f"tensor {finding.tensor!r}")
    place = ", ".join(parts)
    if finding.target is None:
        return place
    return f"{finding.target}: {place}" if place else finding.target
