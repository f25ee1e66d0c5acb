"""The area under the ROC curve."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from deploykit.evaluation.base import OutputMetric, misfit

if TYPE_CHECKING:
    from deploykit.evaluation.base import Request
    from deploykit.parity import Array


class RocMetric(OutputMetric):
    """A metric that ranks the scores of all samples together. Keeps one float a row."""

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self._scores: list[float] = []
        self._labels: list[int] = []

    def _rank(self, scores: Array, labels: Array) -> None:
        """Takes in rows of one sample; those of a negative label are not scored."""
        known = labels >= 0
        self._scores += scores[known].tolist()
        self._labels += labels[known].tolist()
        self.scored += int(np.count_nonzero(known))
        self.unscored += int(np.count_nonzero(~known))

    def _value(self) -> float:
        return area_under_roc(self.name, np.array(self._scores), np.array(self._labels))


def area_under_roc(name: str, scores: Array, labels: Array) -> float:
    """Share of pairs of one row of class 1 and one of class 0 that the scores order right; ties count half.

    scores, labels [rows]; labels are 0 or 1. Mann-Whitney U over the product of both counts. `name`: of the metric.
    Raises DataError (DK423) when one of the classes has no row.
    """
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    positives = int(np.count_nonzero(labels == 1))
    negatives = labels.size - positives
    if not positives or not negatives:
        raise misfit(name, "it needs labels of both classes")
    return float((ranks[labels == 1].sum() - positives * (positives + 1) / 2) / (positives * negatives))
