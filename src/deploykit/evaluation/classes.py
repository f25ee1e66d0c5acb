"""Metrics of classes: top-k, F1, the area under the ROC curve."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from deploykit.errors import DataError
from deploykit.evaluation.base import OutputMetric, RatioMetric, class_numbers, same_count
from deploykit.evaluation.ranking import RocMetric
from deploykit.parity import kind_of

if TYPE_CHECKING:
    from deploykit.evaluation.base import Request
    from deploykit.parity import Array

# A single probability per row is a yes or a no at this value.
BINARY_THRESHOLD = 0.5
_NO_CLASS = -1  # what a row with a NaN predicts


class TopK(RatioMetric):
    """Share of rows whose true class is among the k largest outputs, in percent.

    output [rows..., classes] with one integer label a row; a single column is a probability of class 1; an integer or
    string output is the predicted class itself. Negative labels under a class axis mean "not scored", as in PyTorch.
    """

    unit = "%"
    scale = 100.0

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self.k = int(request.text.removeprefix("top").partition(":")[0].partition(",")[0])

    def _add(self, output: Array, label: Array) -> None:
        right, known = _hits(self.name, output, label.ravel(), self.k)
        scored = int(np.count_nonzero(known))
        self.unscored += int(known.size) - scored
        if scored:
            self._count(int(np.count_nonzero(right & known)), scored, scored)


def _hits(name: str, output: Array, labels: Array, k: int) -> tuple[Array, Array]:
    """By row: whether the label is among the k best, and whether the row is scored."""
    if kind_of(output.dtype) != "float":
        same_count(name, output.size, labels.size, output.shape)
        return output.ravel() == labels.astype(output.dtype), np.ones(labels.size, dtype=bool)
    labels = class_numbers(name, labels)
    scores = _rows(output, labels.size, name)
    known = labels >= 0
    classes = max(scores.shape[1], 2)
    if (labels >= classes).any():
        raise DataError(
            f"metric {name!r}: a label is {labels.max()}, and the output has {classes} classes, 0 to {classes - 1}",
            code="DK423",
            hint="labels start with 0; are these the labels of this model?",
        )
    valid = ~np.isnan(scores).any(axis=1)
    if scores.shape[1] == 1:
        return ((scores[:, 0] >= BINARY_THRESHOLD) == (labels == 1)) & valid, known
    k = min(k, scores.shape[1])
    # Stable, so that equal scores go to the lower class, as argmax has it.
    best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return (best == labels[:, None]).any(axis=1) & valid, known


def _rows(output: Array, count: int, name: str) -> Array:
    """The output as [count, classes]."""
    values = output.astype(np.float64)
    if values.size == count:
        return values.reshape(count, 1)
    rows = values.reshape(-1, values.shape[-1]) if values.ndim else values.reshape(1, 1)
    same_count(name, rows.shape[0], count, output.shape)
    return rows


class F1(OutputMetric):
    """Harmonic mean of precision and recall, 0 to 1: of class 1 with two classes, else the macro mean over classes."""

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self._right: Counter[int] = Counter()
        self._predicted: Counter[int] = Counter()
        self._true: Counter[int] = Counter()

    def _add(self, output: Array, label: Array) -> None:
        labels = class_numbers(self.name, label.ravel())
        if kind_of(output.dtype) != "float":
            same_count(self.name, output.size, labels.size, output.shape)
            predicted = output.ravel().astype(np.int64)
        else:
            scores = _rows(output, labels.size, self.name)
            single = scores.shape[1] == 1
            predicted = (scores[:, 0] >= BINARY_THRESHOLD).astype(np.int64) if single else scores.argmax(axis=1)
            predicted = np.where(np.isnan(scores).any(axis=1), _NO_CLASS, predicted)
        known = labels >= 0
        self.scored += int(np.count_nonzero(known))
        self.unscored += int(np.count_nonzero(~known))
        self._true.update(labels[known].tolist())
        self._predicted.update(predicted[known].tolist())
        self._right.update(labels[known & (labels == predicted)].tolist())

    def _value(self) -> float:
        classes = sorted({*self._true, *self._predicted} - {_NO_CLASS})
        wanted = [1] if set(classes) <= {0, 1} else classes
        totals = [(self._right[c], self._true[c] + self._predicted[c]) for c in wanted]
        return sum(2 * right / total if total else 0.0 for right, total in totals) / len(wanted)


class Auc(RocMetric):
    """Area under the ROC curve, 0 to 1, of class 1 against class 0; ties count half (Mann-Whitney U).

    The score is the last column (softmax or a single probability).
    """

    def _add(self, output: Array, label: Array) -> None:
        labels = class_numbers(self.name, label.ravel())
        scores = _rows(output, labels.size, self.name)
        if scores.shape[1] > 2:
            raise DataError(f"metric 'auc' needs one or two classes, the output has {scores.shape[1]}", code="DK423")
        margin = scores[:, -1] - (scores[:, 0] if scores.shape[1] == 2 else 0.0)
        self._rank(margin, labels)
