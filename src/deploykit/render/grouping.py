"""Findings that say the same about many places, put together."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deploykit.report import Finding

_NAME = re.compile(r"'[^']*'")
_ORDER = {"error": 0, "warning": 1, "note": 2}


@dataclasses.dataclass(frozen=True, slots=True)
class FindingGroup:
    """Findings with the same code, severity and message, in the order in which they were made.

    Messages about nodes are the same when they differ in quoted names only, such as those of the nodes' inputs; other
    findings must have the same hint, too.
    """

    findings: tuple[Finding, ...]

    @property
    def message(self) -> str:
        """What all of them say; '...' stands for names that differ."""
        first, *others = (finding.message for finding in self.findings)
        names = [_NAME.findall(message) for message in others]
        own = enumerate(_NAME.findall(first))
        kept = iter([name if all(each[at] == name for each in names) else "'...'" for at, name in own])
        return _NAME.sub(lambda _: next(kept), first)

    @property
    def hints(self) -> list[str]:
        """What can be done, the most frequent first; where that differs from node to node, of how many it is true."""
        counts = Counter(finding.hint for finding in self.findings if finding.hint)
        if len(counts) < 2:
            return list(counts)
        return [f"for {number} of {len(self.findings)}: {hint}" for hint, number in counts.most_common()]

    @property
    def places(self) -> list[str]:
        """Each place once, with all the targets that it concerns: `openvino, coreml: node 'conv_3' (Conv)`."""
        targets: dict[str, list[str]] = {}
        for finding in self.findings:
            named = targets.setdefault(_spot(finding), [])
            if finding.target is not None and finding.target not in named:
                named.append(finding.target)
        lines = [": ".join(part for part in (", ".join(named), spot) if part) for spot, named in targets.items()]
        return [line for line in lines if line]

    @property
    def spots(self) -> list[str]:
        """Each place once, without targets: for findings that stand under their target's heading."""
        return [spot for spot in dict.fromkeys(map(_spot, self.findings)) if spot]


# Numbers on random data must not be read before it is said that the data are random.
_BEFORE_NUMBERS = {"DK320"}


def before_numbers(findings: Iterable[Finding]) -> tuple[list[Finding], list[Finding]]:
    """The findings that a rendering must show above its tables, and the rest."""
    found = list(findings)
    first = [finding for finding in found if finding.code in _BEFORE_NUMBERS]
    return first, [finding for finding in found if finding.code not in _BEFORE_NUMBERS]


def grouped(findings: Iterable[Finding]) -> list[FindingGroup]:
    """The groups, errors first; within a severity in the order of their first finding."""
    groups: dict[tuple[str, str, str, str], list[Finding]] = {}
    for finding in findings:
        about = (finding.message, finding.hint) if finding.node is None else (_NAME.sub("''", finding.message), "")
        groups.setdefault((finding.severity, finding.code, *about), []).append(finding)
    ordered = sorted(groups.values(), key=lambda group: _ORDER[group[0].severity])
    return [FindingGroup(tuple(group)) for group in ordered]


def where(finding: Finding) -> str:
    """The place of a finding on one line: `openvino: node 'conv_3' (Conv) in encoder.stem`; empty without one."""
    place = _spot(finding)
    if finding.target is None:
        return place
    return f"{finding.target}: {place}" if place else finding.target


def _spot(finding: Finding) -> str:
    """Node, op, module and tensor of a finding, without its target."""
    parts = []
    if finding.node is not None:
        origin = f" in {finding.scope}" if finding.scope else ""
        parts.append(f"node {finding.node!r}" + (f" ({finding.op})" if finding.op else "") + origin)
    elif finding.op is not None:
        parts.append(f"op {finding.op}")
    if finding.tensor is not None:
        parts.append(f"tensor {finding.tensor!r}")
    return ", ".join(parts)
