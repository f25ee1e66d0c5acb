"""`deploykit explain`: what an error code means."""

from __future__ import annotations

import dataclasses
import difflib

from deploykit.errors import UsageError
from deploykit.explanations import load
from deploykit.report import Report


def explain(code: str | None = None) -> Report:
    """What a code such as "DK312" means, why it happens and what to do; every code without one.

    Returns a report whose metrics are {"codes": [{"code", "title", "why", "fix"}]}.
    Raises UsageError (DK832) for an unknown code.
    """
    known = load()
    if code is None:
        return Report("explain", metrics={"codes": [dataclasses.asdict(entry) for entry in known.values()]})
    wanted = code.strip().upper()
    wanted = f"DK{wanted}" if wanted.isdecimal() else wanted
    if wanted not in known:
        near = difflib.get_close_matches(wanted, known, n=1, cutoff=0.5)
        raise UsageError(
            f"there is no error code {code!r}",
            code="DK832",
            hint=f"did you mean {near[0]}?" if near else "deploykit explain lists all codes",
        )
    return Report("explain", metrics={"codes": [dataclasses.asdict(known[wanted])]})
