"""A table as every format draws it, and the lines below it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclasses.dataclass(slots=True)
class Section:
    """One table and the lines below it.

    numeric: names of the columns that hold numbers. flexible: those with text that may be folded. droppable: those to
    leave out, in this order, where there is no room (a narrow terminal).
    Without columns there is only the text in `lines`; a table whose columns are all "" has no head.
    """

    title: str
    columns: tuple[str, ...] = ()
    rows: list[list[str]] = dataclasses.field(default_factory=list)
    numeric: frozenset[str] = frozenset()
    lines: list[str] = dataclasses.field(default_factory=list)
    flexible: frozenset[str] = frozenset()
    droppable: tuple[str, ...] = ()


def table(
    title: str,
    columns: Iterable[str],
    rows: Iterable[Sequence[Any]],
    numeric: Iterable[str] = (),
    flexible: Iterable[str] = (),
    droppable: Iterable[str] = (),
) -> Section:
    """A section of cells as texts; the columns' properties as of `Section`."""
    cells = [[str(cell) for cell in row] for row in rows]
    return Section(
        title, tuple(columns), cells, frozenset(numeric), flexible=frozenset(flexible), droppable=tuple(droppable)
    )
