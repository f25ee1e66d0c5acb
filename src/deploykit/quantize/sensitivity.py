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


@dataclasses.dataclass(frozen=True, slots=True)
class Sensitivity:
    """One node that can be quantized.

    macs_share: of the model's multiply-accumulates. alone_db: SQNR of the worst output with only this node quantized.
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


def rank(evaluator: Evaluator, recipe: Recipe, on_progress: OnProgress) -> list[Sensitivity]:
    """The nodes that the recipe quantizes, the most sensitive first; equal ones in the model's order.

    Sums of noise predict well what several nodes do together, as each adds its own rounding error; the correction of
    biases is for the whole model, and left out.
    """
    recipe = dataclasses.replace(recipe, bias_correction=False)
    names = evaluator.evaluate(recipe, scored=False).nodes
    groups = _groups(names)
    found: list[Sensitivity] = []
    for done, group in enumerate(groups):
        on_progress(Progress("ranking nodes", group[0], done, len(groups)))
        alone = evaluator.evaluate(_only(recipe, names, group), scored=False)
        found += [
            Sensitivity(name, evaluator.ops[name], evaluator.share((name,)), alone.sqnr_db, len(group))
            for name in group
        ]
    found.sort(key=lambda row: row.alone_db)
    return [*_closer(evaluator, recipe, names, found[:WORST], on_progress), *found[WORST:]]


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
