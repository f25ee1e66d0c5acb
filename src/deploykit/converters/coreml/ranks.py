"""Tensors of more than five dimensions, which Core ML does not have, as views of fewer; how their axes are permuted.

Elements lie in row-major order, so neighbouring axes that stay neighbours count as one. Nothing here needs coremltools.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST = 5


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Varying:
    """A size that is known while the model runs: a scalar variable, and the graph's symbol for it where it has one."""

    variable: Any
    symbol: str | None = None


Size: TypeAlias = int | Varying


@dataclasses.dataclass(frozen=True, slots=True)
class Wide:
    """A tensor of any rank: its elements in a variable of a rank that Core ML has, and its sizes."""

    variable: Any
    sizes: tuple[Size, ...]

    @property
    def rank(self) -> int:
        """The number of its axes."""
        return len(self.sizes)


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One transpose of blocks. blocks: axes that stay together, in their present order. order: of the blocks, after."""

    blocks: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]


def same(first: Size, second: Size) -> bool:
    """Whether two sizes are known to be equal."""
    if isinstance(first, int) or isinstance(second, int):
        return first == second
    if first is second or first.variable is second.variable:
        return True
    return first.symbol is not None and first.symbol == second.symbol


@functools.cache
def transposition(permutation: tuple[int, ...]) -> tuple[Step, ...]:
    """A permutation of axes as transposes of at most five blocks each; none where it moves nothing.

    Among the transposes of the present blocks the one is taken that leaves the fewest to move.
    """
    present = tuple(range(len(permutation)))
    steps: list[Step] = []
    while True:
        blocks = _blocks(present, permutation)
        if len(blocks) == 1:
            return tuple(steps)
        if len(blocks) <= MOST:
            steps.append(_step(blocks, _wanted(blocks, permutation)))
            return tuple(steps)
        step = min(_possible(blocks), key=lambda found: len(_blocks(_after(found), permutation)))
        steps.append(step)
        present = _after(step)


def _blocks(present: Sequence[int], wanted: Sequence[int]) -> list[tuple[int, ...]]:
    """The present order, cut where neighbours do not stay neighbours."""
    following = dict(itertools.pairwise(wanted))
    blocks: list[tuple[int, ...]] = []
    for axis in present:
        if blocks and following.get(blocks[-1][-1]) == axis:
            blocks[-1] += (axis,)
        else:
            blocks.append((axis,))
    return blocks


def _wanted(blocks: Sequence[tuple[int, ...]], permutation: Sequence[int]) -> list[int]:
    places = {axis: place for place, axis in enumerate(permutation)}
    return sorted(range(len(blocks)), key=lambda block: places[blocks[block][0]])


def _step(blocks: Sequence[tuple[int, ...]], order: Sequence[int]) -> Step:
    return Step(tuple(blocks), tuple(order))


def _possible(blocks: Sequence[tuple[int, ...]]) -> list[Step]:
    """Every transpose of five runs of blocks."""
    found = []
    for cuts in itertools.combinations(range(1, len(blocks)), MOST - 1):
        ends = (0, *cuts, len(blocks))
        runs = [tuple(itertools.chain(*blocks[low:high])) for low, high in itertools.pairwise(ends)]
        found += [_step(runs, order) for order in itertools.permutations(range(MOST)) if order != tuple(range(MOST))]
    return found


def _after(step: Step) -> tuple[int, ...]:
    return tuple(itertools.chain(*(step.blocks[block] for block in step.order)))


def grouped(marks: Sequence[Any]) -> list[tuple[Any, list[int]]]:
    """Neighbouring axes with the same mark together: (mark, axes). An axis marked None goes with its neighbours."""
    groups: list[tuple[Any, list[int]]] = []
    for axis, mark in enumerate(marks):
        if mark is None and groups:
            groups[-1][1].append(axis)
        elif groups and (groups[-1][0] == mark or groups[-1][0] is None):
            groups[-1] = (mark, [*groups[-1][1], axis])
        else:
            groups.append((mark, [axis]))
    return groups
