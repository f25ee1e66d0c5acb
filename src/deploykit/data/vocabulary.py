"""Which integers a graph takes at its inputs, told by what it does with them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclasses.dataclass(frozen=True, slots=True)
class Values:
    """The integers that an input may have: the `choices` when there are any, else low..high, both included."""

    low: int
    high: int
    choices: tuple[int, ...] = ()

    def describe(self) -> str:
        """`0..30521`, or `one of 8000, 16000`."""
        return f"one of {', '.join(map(str, self.choices))}" if self.choices else f"{self.low}..{self.high}"


def integer_values(model: Path, names: tuple[str, ...]) -> dict[str, Values]:
    """The values of the named integer inputs, those left out about which the graph says nothing."""
    return {}
