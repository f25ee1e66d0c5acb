"""Outcome: whether one condition holds for a node, what is the case, and what to do where it does not."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from deploykit.opsupport.facts import NodeFacts, TensorFacts

# The table that judges puts its own target in the place of TARGET.
FIX = "deploykit check MODEL --target TARGET --fix -o OUT"
SIMPLIFY = "deploykit simplify MODEL -o OUT"


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """holds: None when it cannot be told from the graph. fact and remedy: empty where it holds."""

    holds: bool | None
    fact: str = ""
    remedy: str = ""


HOLDS = Outcome(True)


def broken(fact: str, remedy: str) -> Outcome:
    """The condition does not hold."""
    return Outcome(False, fact, remedy)


def untold(fact: str, remedy: str) -> Outcome:
    """Whether it holds depends on what the graph does not say."""
    return Outcome(None, fact, remedy)


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """The first broken one, else the first that cannot be told, else that all hold."""
    found = HOLDS
    for outcome in outcomes:
        if outcome.holds is False:
            return outcome
        if outcome.holds is None and found.holds:
            found = outcome
    return found


def given(node: NodeFacts, position: int) -> TensorFacts | None:
    """The input at that position; None where it is left out."""
    return node.inputs[position] if -len(node.inputs) <= position < len(node.inputs) else None


def label(position: int, tensor: TensorFacts, role: str = "input") -> str:
    """How a sentence names a tensor of a node."""
    return f"{role} {position} {tensor.name!r}"


def listed(values: Iterable[object]) -> str:
    """The values of a sentence: `a, b or c`."""
    texts = [str(value) for value in values]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} or {texts[-1]}"


def ranges(values: Iterable[Sequence[int | None]]) -> str:
    """Version ranges of a sentence, joined where one follows another: `7-12, 14 and later`."""
    joined: list[list[int | None]] = []
    for low, high in sorted(values, key=lambda pair: pair[0] or 0):
        if joined and joined[-1][1] is not None and low is not None and low <= joined[-1][1] + 1:
            joined[-1][1] = None if high is None else max(high, joined[-1][1])
        else:
            joined.append([low, high])
    return ", ".join(
        f"{low} and later" if high is None else str(low) if low == high else f"{low}-{high}" for low, high in joined
    )
