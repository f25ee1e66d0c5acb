"""Progress on stderr: a live line on a terminal, one line for each new stage elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import TaskID

    from deploykit.progress import OnProgress, Progress

WHOLE = "run"  # the stage whose items are the steps of a chain; other stages go on inside of one


@contextlib.contextmanager
def draw() -> Iterator[OnProgress]:
    """The listener for stderr as it is: a terminal, or a file that a person reads later."""
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        with _live() as listener:
            yield listener
    else:
        yield _Lines()


class _Lines:
    """One line for each stage as it begins: a log stays readable. The steps of a run are its stages."""

    def __init__(self) -> None:
        self._stage = ""
        self._in_run = False

    def __call__(self, step: Progress) -> None:
        if step.stage == WHOLE:
            self._in_run = True
            if step.item:
                self._say(f"[{(step.done or 0) + 1}/{step.total}] {step.item}")
        elif step.stage != self._stage and not self._in_run:
            self._stage = step.stage
            self._say(f"{step.stage} ...")

    def _say(self, line: str) -> None:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


@contextlib.contextmanager
def _live() -> Iterator[OnProgress]:
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Display
    from rich.text import Text

    class BarWhereKnown(BarColumn):
        def render(self, task: Task) -> Text:  # type: ignore[override]
            # A pulsing bar says "almost there" about work whose length nobody knows.
            return Text("") if task.total is None else super().render(task)  # type: ignore[return-value]

    display = Display(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarWhereKnown(bar_width=30),
        TextColumn("{task.fields[item]}", markup=False),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    current: dict[str, TaskID] = {}

    def listen(step: Progress) -> None:
        if step.stage not in current or step.stage == WHOLE:
            for stage in [stage for stage in current if stage != WHOLE]:
                display.remove_task(current.pop(stage))
        if step.stage not in current:
            current[step.stage] = display.add_task(step.stage, total=step.total, item="")
        count = f"{step.done}/{step.total} " if step.total is not None and step.done is not None else ""
        display.update(current[step.stage], completed=step.done or 0, total=step.total, item=f"{count}{step.item}"[:80])

    with display:
        yield listen
