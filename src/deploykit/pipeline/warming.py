"""Imports ahead of time: while one core exports the model, the others load the vendors that follow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deploykit.api.warming import imports_of
from deploykit.isolation import workers
from deploykit.target import parse_target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deploykit.pipeline.plan import Step


def warm(steps: Sequence[Step]) -> None:
    """Starts the workers of the steps, one by one, and has them import their vendors; returns at once."""
    from deploykit.optimizers.candidates import BLOCKED, ENGINES, IMPORTS, worker_of

    wanted: dict[str, tuple[Sequence[str], Sequence[str]]] = {}
    with workers() as pool:
        for step in steps:
            if step.stage == "simplify":
                chosen = str(step.options["engine"])
                for engine in ENGINES if chosen == "auto" else [chosen]:
                    wanted[worker_of(engine)] = (IMPORTS[engine], BLOCKED)
        for name in dict.fromkeys(step.target for step in steps if step.stage == "convert" and step.target):
            target, _ = parse_target(name)
            wanted |= imports_of(target)
        pool.warm(wanted)
