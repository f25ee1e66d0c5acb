"""Progress that long work reports and the command line draws; a total only where it is known."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable


@dataclasses.dataclass(frozen=True, slots=True)
class Progress:
    """One step of long work.

    stage: what is going on ("calibrating"). item: the current thing ("sample 12").
    done, total: in the same unit; total is None where it is not known.
    """

    stage: str
    item: str = ""
    done: int | None = None
    total: int | None = None


OnProgress = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """Drops the step: the default listener."""
