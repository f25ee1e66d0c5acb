"""The most quantized model within a budget: the SQNR gate, and with labels the drop of the task metric.

Methods first, on one calibration; then nodes are left in float, those that cost most for their work first; then what
was left in float is put back where that holds. Every decision is measured on a model that was really built.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from deploykit.progress import OnProgress, Progress
from deploykit.quantize.evaluator import digest_of
from deploykit.quantize.sensitivity import Sensitivity, rank
from deploykit.quantize.thresholds import METHODS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deploykit.quantize.evaluator import Evaluator, Score
    from deploykit.quantize.settings import Settings
    from deploykit.quantize.static import Recipe

# Evaluations to spend on putting nodes back.
RESTORES = 24
# Evaluations to spend on exchanging a node in integers for a larger one.
EXCHANGES = 8
SMOOTHING = 0.5
# SmoothQuant moves range from activations into the weights of these, and calibrates again: where they do at least this
# share of the work.
SMOOTHED, SMOOTHED_SHARE = frozenset({"MatMul", "Gemm"}), 1 / 3


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What a search found.

    met: whether `best` is within the budget; otherwise it is what came closest. plain: as asked for, with nothing left
    out. ranking: empty when a method alone was enough. tried: one object an evaluation that decided something.
    """

    best: Score
    met: bool
    plain: Score
    ranking: tuple[Sensitivity, ...]
    tried: tuple[dict[str, Any], ...]
    evaluations: int

    @property
    def left(self) -> tuple[str, ...]:
        """Nodes that the plain result has in integers and the best one has not."""
        kept = set(self.best.nodes)
        return tuple(name for name in self.plain.nodes if name not in kept)


class Search:
    """One search; deterministic, and bounded by the number of nodes."""

    def __init__(self, evaluator: Evaluator, settings: Settings, start: Recipe, on_progress: OnProgress) -> None:
        """start: the plain recipe; what was asked for in it is kept in all that is tried."""
        self._evaluator = evaluator
        self._settings = settings
        self._start = start
        self._on_progress = on_progress
        self._budget: float | None = None if settings.accuracy is None else settings.accuracy["max_drop"]
        self._tried: dict[str, tuple[str, Score]] = {}  # by digest of the recipe
        self._ranking: list[Sensitivity] = []

    def run(self) -> Outcome:
        """The most quantized candidate within the budget, or the one that came closest."""
        plain = self._try("as asked for", self._start)
        if not plain.nodes:
            return self._outcome(plain, plain)
        best = plain if self.meets(plain) else self._within(plain)
        if best is not None and self._budget is not None:
            best = self._confirmed(best)
        return self._outcome(plain, best)

    def _within(self, plain: Score) -> Score | None:
        """The most quantized candidate within the budget, on the samples that a search scores."""
        candidates = self._methods(plain)
        best = next(filter(self.meets, candidates), None)
        if best is None and not self._settings.whole:
            order = self._by_price(candidates[0].recipe)
            best = self._shortest_prefix(candidates[0].recipe, order)
            best = None if best is None else self._exchanged(self._put_back(best))
        return best

    def _by_price(self, recipe: Recipe) -> list[str]:
        """Nodes in the order in which they are left out: those first that add most noise for the work that they do."""
        if not self._ranking:
            self._ranking = rank(self._evaluator, recipe, self._on_progress, closer=self._settings.sensitivity)
        return [row.node for row in sorted(self._ranking, key=lambda row: -_ratio(row))]

    def meets(self, score: Score) -> bool:
        """Whether a candidate is within the budget: outputs hold the gate, and the metric does not drop further."""
        if not score.nodes or not score.sound:
            return False
        return self._budget is None or (score.drop is not None and score.drop.value <= self._budget)

    def _outcome(self, plain: Score, best: Score | None) -> Outcome:
        scores = [score for _, score in self._tried.values()]
        tried = [
            {
                "step": step,
                "float_nodes": len(plain.nodes) - len(score.nodes),
                **score.as_dict(),
                "met": self.meets(score),
            }
            for step, score in self._tried.values()
        ]
        return Outcome(
            best or min(scores, key=_distance),
            best is not None and (self.meets(best) or not plain.nodes),
            plain,
            tuple(self._ranking),
            tuple(tried),
            self._evaluator.evaluations,
        )

    def _try(self, step: str, recipe: Recipe) -> Score:
        score = self._evaluator.evaluate(recipe, scored=self._budget is not None)
        self._tried.setdefault(digest_of(recipe), (step, score))
        level = "equal" if math.isinf(score.sqnr_db) else f"{score.sqnr_db:.1f} dB"
        item = f"{step}: {level}, {score.macs_share:.0%} of the MACs in INT8"
        self._on_progress(Progress("searching", item, self._evaluator.evaluations))
        return score

    def _methods(self, plain: Score) -> list[Score]:
        """The whole model by every method, the best first; the corrections on top of the best method."""
        asked = self._settings
        found = [plain]
        if asked.method == "auto" and asked.calibrates:  # ranges from a file alone have one method
            others = [method for method in METHODS if method != "auto"]
            found += [self._try(method, dataclasses.replace(self._start, method=method)) for method in others]
        best = _best(found).recipe
        smoothed = [name for name in plain.nodes if self._evaluator.ops[name] in SMOOTHED]
        helps = asked.smooth_quant is None and self._evaluator.share(smoothed) >= SMOOTHED_SHARE
        if helps and asked.calibrates:
            found.append(self._try("SmoothQuant", dataclasses.replace(best, smooth_quant=SMOOTHING)))
        if not asked.bias_correction:
            best = _best(found).recipe
            found.append(self._try("bias correction", dataclasses.replace(best, bias_correction=True)))
        # Of several ways to the same model the first: it takes the fewest options.
        distinct = {score.model: score for score in reversed(found)}
        return sorted((score for score in found if distinct[score.model] is score), key=_badness)

    def _shortest_prefix(self, recipe: Recipe, order: Sequence[str]) -> Score | None:
        """Leaves out as few of the first nodes of the order as it takes, by bisection."""
        few, many = 0, len(order)
        best: Score | None = None
        while many - few > 1:
            count = (few + many) // 2
            score = self._try(f"without {count} nodes", _without(recipe, order[:count]))
            if self.meets(score):
                best, many = score, count
            else:
                few = count
        return best

    def _put_back(self, best: Score) -> Score:
        """Puts nodes back into integers, in groups that are halved where they break the budget."""
        left = sorted((row for row in self._ranking if row.node not in best.nodes), key=_ratio)
        groups = _halves([row.node for row in left])
        for _ in range(RESTORES):
            if not groups:
                break
            group = groups.pop(0)
            kept = tuple(name for name in best.recipe.exclude if name not in group)
            score = self._try(f"{len(group)} nodes put back", dataclasses.replace(best.recipe, exclude=kept))
            if self.meets(score):
                best = score
            elif len(group) > 1:
                groups[:0] = _halves(group)
        return best

    def _exchanged(self, best: Score) -> Score:
        """Puts a node back for one that does less work and adds about as much noise or more."""
        rows = {row.node: row for row in self._ranking}
        left = [row for row in self._ranking if row.node not in best.nodes]
        spent = 0
        for new in sorted(left, key=lambda row: -row.macs_share):
            inside = (rows[name] for name in best.nodes if name in rows)
            out = [row for row in inside if row.macs_share < new.macs_share and row.noise * 2 >= new.noise]
            for old in sorted(out, key=lambda row: row.macs_share)[:2]:
                if spent == EXCHANGES:
                    return best
                spent += 1
                kept = tuple(name for name in best.recipe.exclude if name != new.node)
                recipe = dataclasses.replace(best.recipe, exclude=(*kept, old.node))
                score = self._try("one node for another", recipe)
                if self.meets(score):
                    best = score
                    break
        return best

    def _confirmed(self, best: Score) -> Score | None:
        """The best on all labelled samples where the search saw a part; leaves out more nodes until that holds."""
        score = self._evaluator.confirm(best.recipe)
        if self.meets(score):
            return score
        order = [name for name in self._by_price(best.recipe) if name in best.nodes]
        count = 1
        while not self.meets(score) and count < len(order):
            self._tried[digest_of(score.recipe)] = ("on all labelled samples", score)
            score = self._evaluator.confirm(_without(best.recipe, order[:count]))
            count *= 2
        self._tried[digest_of(score.recipe)] = ("on all labelled samples", score)
        return score if self.meets(score) else None


def _without(recipe: Recipe, names: Sequence[str]) -> Recipe:
    return dataclasses.replace(recipe, exclude=(*recipe.exclude, *names))


def _halves(names: Sequence[str]) -> list[list[str]]:
    middle = (len(names) + 1) // 2
    return [list(part) for part in (names[:middle], names[middle:]) if part]


def _ratio(row: Sensitivity) -> float:
    """Noise that a node adds for each share of the work that it does."""
    return row.noise / max(row.macs_share, 1e-9)


def _badness(score: Score) -> float:
    return -score.sqnr_db


def _best(scores: Sequence[Score]) -> Score:
    return min(scores, key=_badness)  # the first of equal ones


def _distance(score: Score) -> tuple[float, ...]:
    """How far a candidate that has integer nodes is from the budget: the smallest is the best that was found."""
    if not score.nodes:
        return (2.0,)
    if not score.sound or score.drop is None:
        return (1.0, -score.sqnr_db, -score.macs_share)
    return (0.0, score.drop.value, -score.macs_share, -score.sqnr_db)
