"""Plans with the same bytes for the same model: the compiler's threads run one after the other."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def in_turn() -> Iterator[None]:
    """Threads started inside share one processor, and none takes it from another that still has work.

    The compiler numbers and orders temporaries by when its threads reach them: of ten builds of a model with dynamic
    shapes in ten processes, four differ, by names and by offsets in memory (TensorRT-RTX 1.7, addresses fixed). In
    batch scheduling on one processor all ten are equal, and as fast as on two. Linux only; elsewhere nothing changes.
    """
    if not hasattr(os, "SCHED_BATCH"):
        yield
        return
    before, policy = os.sched_getaffinity(0), os.sched_getscheduler(0)
    chosen = sorted(before)[os.getpid() % len(before)]
    # A container may forbid either: the plan is then only as reproducible as the machine's load lets it be.
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, {chosen})
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, policy, os.sched_param(0))
            os.sched_setaffinity(0, before)
