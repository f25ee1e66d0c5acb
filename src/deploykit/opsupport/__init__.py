"""Operator support: rules, verdicts and the checker that asks every source of truth."""

from deploykit.opsupport.registry import Entry, Registry, since_version
from deploykit.opsupport.verdict import Status, Verdict, conditional, supported, unknown, unsupported

__all__ = [
    "Entry",
    "Registry",
    "Status",
    "Verdict",
    "conditional",
    "since_version",
    "supported",
    "unknown",
    "unsupported",
]
