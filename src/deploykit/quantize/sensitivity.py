"""What quantizing each node costs, measured: alone, and, for the worst, what is gained by leaving it out."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from deploykit.progress import OnProgress, Progress
from deploykit.quantize.evaluator import in_db

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deploykit.quantize.evaluator import Evaluator
    from deploykit.quantize.static import Recipe

# So many measurements at most: nodes that follow each other share one where there are more.
MEASURED = 160
# The worst ones are also measured the other way round, and on the task where there are labels.
WORST = 8
# The last nodes of a model are quantized in each measurement, when they are at most so many and so quiet (dB).
MANY_LAST, QUIET = 8, 25.0


@dataclasses.dataclass(frozen=True, slots=True)
class Sensitivity:
    """One node that can be quantized.

    macs_share: of the model's multiply-accumulates. alone_db: SQNR of the worst output with only this node quantized,
    its output with it.
    shared: how many nodes were quantized for that measurement. without_db: SQNR with all but this one quantized.
    drop: of the task metric with only this node quantized. None: not measured.
    """

    node: str
    op: str
    macs_share: float
    alone_db: float
    shared: int = 1
    without_db: float | None = None
    drop: float | None = None

    @property
    def noise(self) -> float:
        """Noise power that the node adds to the worst output, as a share of the signal's (0: none)."""
        if self.alone_db == -math.inf:
            return math.inf
        return float(10 ** (-self.alone_db / 10)) / self.shared

    def as_dict(self) -> dict[str, Any]:
        """A row of the report; a level is null when outputs are equal ("exact") or cannot be compared."""
        return {
            "node": self.node,
            "op": self.op,
            "macs_share": round(self.macs_share, 6),
            "sqnr_alone_db": in_db(self.alone_db),
            "exact": self.alone_db == math.inf,
            "sqnr_without_db": None if self.without_db is None else in_db(self.without_db),
            "metric_drop": self.drop,
            "measured_with": self.shared,
        }


def rank(evaluator: Evaluator, recipe: Recipe, on_progress: OnProgress, *, closer: bool = True) -> list[Sensitivity]:
    """The nodes that the recipe quantizes, the most sensitive first; equal ones in the model's order.

    closer: the worst are also left out one by one, and scored on the task where there are labels.

    A convolution writes integers only where an integer node follows, and that rounding is a part of its price. So each
    node is measured together with the last ones of the model, whose own noise is then taken off. The correction of
    biases is for the whole model, and left out.
    """
    recipe = dataclasses.replace(recipe, bias_correction=False)
    names = evaluator.evaluate(recipe, scored=False).nodes
    last = _last(evaluator, recipe, names)
    floor = evaluator.evaluate(_only(recipe, names, last), scored=False).sqnr_db if last else math.inf
    groups = _groups(names)
    found: list[Sensitivity] = []
    for done, group in enumerate(groups):
        on_progress(Progress("ranking nodes", group[0], done, len(groups)))
        rest = tuple(name for name in last if name not in group) if set(group).isdisjoint(last) else ()
        both = evaluator.evaluate(_only(recipe, names, (*group, *rest)), scored=False).sqnr_db
        level = _without_floor(both, floor) if rest else both
        found += [Sensitivity(name, evaluator.ops[name], evaluator.share((name,)), level, len(group)) for name in group]
    found.sort(key=lambda row: row.alone_db)
    if not closer:
        return found
    return [*_closer(evaluator, recipe, names, found[:WORST], on_progress), *found[WORST:]]


def _last(evaluator: Evaluator, recipe: Recipe, names: Sequence[str]) -> tuple[str, ...]:
    """The nodes that no other one follows; none when they are many, or too loud themselves to hear others beside."""
    last = evaluator.without_followers(names)
    if len(last) > MANY_LAST or len(last) == len(names):
        return ()
    return last if evaluator.evaluate(_only(recipe, names, last), scored=False).sqnr_db >= QUIET else ()


def _without_floor(both: float, floor: float) -> float:
    """The level of one of two independent noises, from that of both and of the other; at most 20 dB above the other."""
    if not math.isfinite(both):
        return both
    noise = 10 ** (-both / 10) - 10 ** (-floor / 10)
    least = 10 ** (-(floor + 20) / 10)
    return -10 * math.log10(max(noise, least)) if max(noise, least) > 0 else math.inf


def _groups(names: Sequence[str]) -> list[tuple[str, ...]]:
    size = max(1, math.ceil(len(names) / MEASURED))
    return [tuple(names[at : at + size]) for at in range(0, len(names), size)]


def _only(recipe: Recipe, names: Sequence[str], kept: Sequence[str]) -> Recipe:
    """The recipe with all other nodes in float."""
    return dataclasses.replace(recipe, exclude=(*recipe.exclude, *(name for name in names if name not in kept)))


def _closer(
    evaluator: Evaluator, recipe: Recipe, names: Sequence[str], rows: list[Sensitivity], on_progress: OnProgress
) -> list[Sensitivity]:
    looked = []
    for done, row in enumerate(rows):
        on_progress(Progress("ranking nodes", f"all but {row.node}", done, len(rows)))
        others = evaluator.evaluate(
            dataclasses.replace(recipe, exclude=(*recipe.exclude, row.node)), scored=False
        ).sqnr_db
        drop = None
        if evaluator.labelled and row.shared == 1:
            alone = evaluator.score_always(_only(recipe, names, (row.node,))).drop
            drop = None if alone is None else alone.value
        looked.append(dataclasses.replace(row, without_db=others, drop=drop))
    return looked
