"""Verdict: whether a target takes a node, why not, and what to do about it."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any


class Status(enum.StrEnum):
    """What a source says about a node; UNKNOWN when no source speaks."""

    SUPPORTED = "supported"
    CONDITIONAL = "conditional"
    UNSUPPORTED = "unsupported"
    UNKNOWN = "unknown"


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What is known about one node on one target.

    reason and remedy are mandatory unless the node is supported. source: who said so ("OpenVINO 2026.4.1 front-end").
    follows: the refused node that this one is refused because of; "" when the cause is its own.
    """

    status: Status
    reason: str = ""
    remedy: str = ""
    source: str = ""
    follows: str = ""

    def __post_init__(self) -> None:
        if self.status is not Status.SUPPORTED and not (self.reason and self.remedy):
            raise ValueError(f"a verdict of {self.status} needs a reason and a remedy")

    @property
    def runs(self) -> bool:
        """Whether nothing stands against the node: supported, or supported under conditions."""
        return self.status in (Status.SUPPORTED, Status.CONDITIONAL)

    def as_dict(self) -> dict[str, Any]:
        """JSON form, keys as support jobs return them."""
        said = {"verdict": str(self.status), "reason": self.reason, "remedy": self.remedy, "source": self.source}
        return {**said, "follows": self.follows} if self.follows else said

    @classmethod
    def from_dict(cls, facts: dict[str, Any]) -> Verdict:
        """The verdict that `as_dict` wrote; other keys are left alone."""
        texts = (facts.get(key, "") for key in ("reason", "remedy", "source", "follows"))
        return cls(Status(facts["verdict"]), *texts)


def supported(source: str = "") -> Verdict:
    """The target takes the node."""
    return Verdict(Status.SUPPORTED, source=source)


def conditional(reason: str, *, remedy: str, source: str = "") -> Verdict:
    """The target takes the node as long as the condition in `reason` holds, which could not be checked here."""
    return Verdict(Status.CONDITIONAL, reason, remedy, source)


def unsupported(reason: str, *, remedy: str, source: str = "") -> Verdict:
    """The target refuses the node."""
    return Verdict(Status.UNSUPPORTED, reason, remedy, source)


def unknown(reason: str, *, remedy: str, source: str = "") -> Verdict:
    """No source says whether the target takes the node."""
    return Verdict(Status.UNKNOWN, reason, remedy, source)
