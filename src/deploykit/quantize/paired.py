"""A task metric before and after, on the same samples: what was lost, and how sure that is."""

from __future__ import annotations

import dataclasses
import math
import statistics
from typing import TYPE_CHECKING, Any

from deploykit.errors import DataError
from deploykit.evaluation import drop, make_metric

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

FOLDS = 10
# One-sided 95 % quantile of the normal distribution.
ONE_SIDED = 1.645


class Folded:
    """A metric over all samples, and over each tenth of them (every tenth sample)."""

    def __init__(self, name: str, models: Sequence[Path] = ()) -> None:
        """name, models: as `make_metric` takes them."""
        self.whole = make_metric(name, models)
        self._folds = [make_metric(name, models) for _ in range(FOLDS)]
        self._count = 0

    def add(self, outputs: Mapping[str, Any], label: Any) -> None:
        """Takes one sample's outputs and its label."""
        self.whole.add(outputs, label)
        if label is not None:
            self._folds[self._count % FOLDS].add(outputs, label)
            self._count += 1

    def parts(self) -> list[float] | None:
        """The metric of each tenth; None where a tenth cannot be scored alone (no sample, one class only)."""
        try:
            return [fold.value() for fold in self._folds]
        except DataError:
            return None


@dataclasses.dataclass(frozen=True, slots=True)
class Drop:
    """What the candidate loses against float, in the metric's unit; positive: worse.

    error: standard error of the difference on the same samples; None where it cannot be told.
    """

    value: float
    reference: float
    candidate: float
    samples: int
    error: float | None = None

    @property
    def at_most(self) -> float:
        """The drop is below this with 95 % confidence, as far as the error is known."""
        return self.value + ONE_SIDED * (self.error or 0.0)


def drop_between(reference: Folded, candidate: Folded) -> Drop:
    """The paired difference of two models that saw the same samples.

    Its error comes from the differences in each tenth: s / sqrt(10) (the method of batch means), which pairing makes
    smaller than the error of either value.
    """
    metric = candidate.whole
    before, after = reference.whole.value(), metric.value()
    parts = (reference.parts(), candidate.parts())
    error = None
    if parts[0] is not None and parts[1] is not None:
        losses = [drop(metric, one, other) for one, other in zip(parts[0], parts[1], strict=True)]
        if all(map(math.isfinite, losses)):
            error = statistics.stdev(losses) / math.sqrt(FOLDS)
    return Drop(drop(metric, before, after), before, after, metric.scored, error)
