"""Mean intersection over union of semantic segmentation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from deploykit.evaluation.base import OutputMetric, class_numbers, misfit
from deploykit.evaluation.classes import BINARY_THRESHOLD
from deploykit.parity import kind_of

if TYPE_CHECKING:
    from deploykit.evaluation.base import Request
    from deploykit.parity import Array


class MeanIntersectionOverUnion(OutputMetric):
    """Mean over classes of intersection / union of predicted and true pixels of the whole set, 0 to 1.

    output: scores [N, classes, H, W] or [N, H, W, classes], one probability [N, 1, H, W], or class numbers in integers
    with the label's pixels. label [N, H, W] or [H, W]: class numbers. Pixels with the label `ignore` (255) or a
    negative one are not scored. Classes that are neither predicted nor true don't count, as in Pascal VOC.
    """

    accepts = ("ignore",)

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self._ignore = request.whole_number("ignore", 255)
        self._confusion = np.zeros((0, 0), np.int64)

    def _add(self, output: Array, label: Array) -> None:
        labels = class_numbers(self.name, label)
        if labels.ndim not in (2, 3):
            raise misfit(self.name, f"a label needs the shape [H, W] or [N, H, W], and has {list(label.shape)}")
        labels = labels.reshape(-1, *labels.shape[-2:])
        predicted = self._predicted(output, labels)
        known = (labels >= 0) & (labels != self._ignore)
        self.scored += int(np.count_nonzero(known))
        self.unscored += int(known.size - np.count_nonzero(known))
        if known.any():
            self._confuse(labels[known], predicted[known])

    def _predicted(self, output: Array, labels: Array) -> Array:
        shape = labels.shape
        if kind_of(output.dtype) != "float":
            if output.size == labels.size:
                return output.reshape(shape).astype(np.int64)
        elif output.size == labels.size:
            return (output.reshape(shape) >= BINARY_THRESHOLD).astype(np.int64)
        elif output.ndim == 4 and (output.shape[0], *output.shape[2:]) == shape:
            return _best(output, 1)
        elif output.ndim == 4 and output.shape[:3] == shape:
            return _best(output, 3)
        raise misfit(
            self.name,
            f"an output of shape {list(output.shape)} for labels of shape {list(shape)}",
            "the label needs the size of the output: resize one of them, the label by nearest neighbour",
        )

    def _confuse(self, true: Array, predicted: Array) -> None:
        # One more class than any: a pixel of NaN scores predicts none of them.
        classes = max(int(true.max()), int(predicted.max())) + 2
        size = max(classes, len(self._confusion))
        predicted = np.where(predicted < 0, size - 1, predicted)
        if size > len(self._confusion):
            grown = np.zeros((size, size), np.int64)
            old = len(self._confusion)
            if old:
                grown[: old - 1, : old - 1] = self._confusion[:-1, :-1]
                grown[: old - 1, -1] = self._confusion[:-1, -1]
            self._confusion = grown
        size = len(self._confusion)
        self._confusion += np.bincount(true * size + predicted, minlength=size * size).reshape(size, size)

    def _value(self) -> float:
        both = np.diag(self._confusion)
        either = self._confusion.sum(axis=0) + self._confusion.sum(axis=1) - both
        either[-1] = 0
        return float(np.mean(both[either > 0] / either[either > 0]))


def _best(scores: Array, axis: int) -> Array:
    found: Array = np.where(np.isnan(scores).any(axis=axis), -1, scores.argmax(axis=axis))
    return found
