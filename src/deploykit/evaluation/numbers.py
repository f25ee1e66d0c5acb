"""Metrics of numbers and vectors: errors, cosines, pairs of embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from deploykit.evaluation.base import RatioMetric, class_numbers, misfit, same_count
from deploykit.evaluation.ranking import RocMetric

if TYPE_CHECKING:
    from deploykit.parity import Array


class MeanError(RatioMetric):
    """Mean absolute error over all values, in the label's units."""

    higher_is_better = False
    power = 1

    def _add(self, output: Array, label: Array) -> None:
        same_count(self.name, output.size, label.size, output.shape)
        difference = np.abs(output.ravel().astype(np.float64) - label.ravel().astype(np.float64))
        self._count((difference**self.power).sum(), difference.size, difference.size)

    def _value(self) -> float:
        return float(self._ratio() ** (1 / self.power))


class RootMeanSquareError(MeanError):
    """Root of the mean squared error over all values, in the label's units."""

    power = 2


class MeanCosine(RatioMetric):
    """Mean over rows of the cosine between the output and the label vector, -1 to 1 (embeddings)."""

    def _add(self, output: Array, label: Array) -> None:
        same_count(self.name, output.size, label.size, output.shape)
        width = output.shape[-1] if output.ndim else 1
        cosines = _cosines(output.reshape(-1, width), label.reshape(-1, width))
        self._count(cosines.sum(), cosines.size, cosines.size)


class Pairs(RocMetric):
    """Area under the ROC curve of "these two belong together", told from the cosine of their embeddings, 0 to 1.

    output [1 + n, width]: the embedding of an anchor, then those of n others in the same call. label [n]: 1 for an
    other that belongs to the anchor (a paraphrase), 0 for one that does not (a distractor), negative: not scored.
    The cosines of all samples are ranked together, so that a threshold which holds for all of them is what counts.
    """

    def _add(self, output: Array, label: Array) -> None:
        labels = class_numbers(self.name, label.ravel())
        if output.ndim != 2 or output.shape[0] != labels.size + 1:
            raise misfit(
                self.name,
                f"{labels.size} label(s) need an output of shape [{labels.size + 1}, width], the anchor's embedding "
                f"first, and it is {list(output.shape)}",
                "one embedding a row: pool token embeddings in the model",
            )
        cosines = _cosines(output[1:], output[:1])
        self._rank(cosines, labels)


def _cosines(first: Array, second: Array) -> Array:
    ours, theirs = first.astype(np.float64), second.astype(np.float64)
    norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    norms[norms == 0] = np.inf
    found: Array = (ours * theirs).sum(axis=1) / norms
    return found
