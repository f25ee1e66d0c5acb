"""The search: sections over cut points first, then from a tensor that differs back to what it is made of.

A cut point lies between two steps; the tensors that live across it are all that the rest is computed from. Where they
agree, the fault lies behind; where one differs, before. Only tensors that make the one searched for count. A look reads
a few cut points at once and no more bytes than a budget.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from deploykit.locating.lineage import Lineage
    from deploykit.locating.rows import Row

    Compare = Callable[[Sequence[str]], Mapping[str, Row | None]]

# Bytes of the reference's tensors in one look; the candidate's are as many again.
BUDGET = 64 << 20
_CUTS_AT_ONCE = 8


class Search:
    """One search in one pair of models."""

    def __init__(
        self,
        lineage: Lineage,
        matched: Collection[str],
        compare: Compare,
        differs: Callable[[Row], bool],
        *,
        settled: int = -1,
        budget: int = BUDGET,
    ) -> None:
        """Nothing has been looked at yet.

        matched: tensors that both sides have. compare: a row for each, None for one that says nothing. differs: what
        is searched for. settled: up to this step all tensors count as agreeing.
        """
        self._lineage = lineage
        self._matched = set(matched)
        self._compare = compare
        self._is_different = differs
        self._settled = settled
        self._budget = budget
        self.rows: dict[str, Row | None] = {}

    def first(self, tensor: str) -> tuple[str, list[str]]:
        """The first tensor that differs on the way to one that does, and the nearest compared ones that it is made of.

        All of these agree. Only cut points at which everything could be compared rule out what lies before them.
        """
        while True:
            tensor = self._narrow(tensor)
            parents = self.parents(tensor)
            differing = [name for name in parents if self._differs(name)]
            if not differing:
                return tensor, parents
            tensor = differing[0]

    def parents(self, tensor: str) -> list[str]:
        """The nearest tensors that a tensor is made of and that can be compared, compared."""
        while True:
            parents = self._lineage.nearest(tensor, self._matched)
            self.look(parents)
            if all(name in self._matched for name in parents):
                return parents

    def look(self, names: Sequence[str]) -> None:
        """Compares what has not been compared, as many at a time as the budget allows."""
        group: list[str] = []
        size = 0
        for name in dict.fromkeys(names):
            if name in self.rows or name not in self._matched or self._lineage.maker[name] <= self._settled:
                continue
            bytes = self._size(name)
            if group and size + bytes > self._budget:
                self._take(group)
                group, size = [], 0
            group.append(name)
            size += bytes
        if group:
            self._take(group)

    def _take(self, names: Sequence[str]) -> None:
        self.rows.update(self._compare(names))
        self._matched -= {name for name in names if self.rows.get(name) is None}

    def _size(self, name: str) -> int:
        known = self._lineage.sizes.get(name)
        return self._budget // _CUTS_AT_ONCE if known is None else known

    def _differs(self, name: str) -> bool:
        row = self.rows.get(name)
        return row is not None and self._is_different(row)

    def _narrow(self, tensor: str) -> str:
        """The tensor itself, or one before it that differs, by sections of the steps that lead to it."""
        cuts = Cuts(self._lineage, tensor)
        low, high, found = -1, len(cuts) - 1, tensor  # cut `low` agrees, at cut `high` `found` differs
        while high - low > 1:
            points = self._points(cuts, low, high)
            self.look([name for point in points for name in cuts.at(point)])
            differing = {point: [name for name in cuts.at(point) if self._differs(name)] for point in points}
            sure = [p for p in points if not differing[p] and all(name in self._matched for name in cuts.at(p))]
            low = sure[-1] if sure else low
            bad = [point for point in points if point > low and differing[point]]
            if bad:
                high = bad[0]
                found = min(differing[high], key=self._lineage.place)
            good = [point for point in points if low < point < high]
            low = good[-1] if good else low
        return found

    def _points(self, cuts: Cuts, low: int, high: int) -> list[int]:
        """Cut points to look at next: evenly spread, fewer where their tensors are large."""
        count = min(_CUTS_AT_ONCE, high - low - 1)
        while True:
            points = sorted({low + (high - low) * (i + 1) // (count + 1) for i in range(count)} - {low, high})
            names = {name for point in points for name in cuts.at(point) if name not in self.rows}
            if count == 1 or sum(map(self._size, names)) <= self._budget:
                return points
            count = (count + 1) // 2


class Cuts:
    """Cut points among the steps that make a tensor; the last one is that tensor alone."""

    def __init__(self, lineage: Lineage, tensor: str) -> None:
        self._steps = lineage.before(tensor)
        self._lineage = lineage
        self._tensor = tensor
        self._born: dict[str, int] = {}
        self._read: dict[str, int] = {}
        for place, index in enumerate(self._steps):
            step = lineage.steps[index]
            self._read.update(dict.fromkeys(step.inputs, place))
            self._born.update(dict.fromkeys(step.outputs, place))

    def __len__(self) -> int:
        return len(self._steps)

    def place(self, tensor: str) -> int:
        """The cut point behind the step that makes a tensor."""
        return self._born[tensor]

    def at(self, place: int) -> list[str]:
        """Tensors made up to a step and read behind it."""
        if place == len(self) - 1:
            return [self._tensor]
        return [name for name, last in self._read.items() if self._born[name] <= place < last]
