"""The oldest system that is to load the package, while its nodes are judged and lowered."""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import coremltools as ct

from deploykit.opsupport.verdict import Verdict, supported, unsupported

if TYPE_CHECKING:
    from collections.abc import Iterator

_OLDEST: ContextVar[Any] = ContextVar("oldest system", default=ct.target.iOS17)


@contextlib.contextmanager
def deploying_to(target: Any) -> Iterator[None]:
    """Inside, `since` answers for this `ct.target`; None: for the default one."""
    token = _OLDEST.set(target or ct.target.iOS17)
    try:
        yield
    finally:
        _OLDEST.reset(token)


def reaches(name: str) -> bool:
    """Whether the oldest system is at least this one ("iOS18")."""
    return bool(_OLDEST.get() >= ct.target[name])


def since(name: str, what: str) -> Verdict:
    """The verdict on something that Core ML has from a system on ("iOS18"). what: in words, plural."""
    if reaches(name):
        return supported()
    return unsupported(
        f"Core ML has {what} from {name} on, and the package is for {_OLDEST.get().name}",
        remedy=f"--option minimum_deployment_target={name}, or --to coreml@{name}",
    )
