"""Accuracy on labelled data: the table of metrics, and a user's own."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import difflib
import importlib
import importlib.util
import inspect
import math
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.errors import DataError, UsageError
from deploykit.parity import Array, as_array, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    Outputs = Mapping[str, Any]

# A single probability per row is a yes or a no at this value.
BINARY_THRESHOLD = 0.5
_NO_CLASS = -1  # what a row with a NaN predicts


class Metric(abc.ABC):
    """One number over labelled samples; one whose label is None (a stream's frame without a truth) is not scored."""

    unit: str = ""
    higher_is_better: bool = True

    def __init__(self, name: str) -> None:
        self.name = name
        self.scored = self.unscored = 0

    @abc.abstractmethod
    def add(self, outputs: Outputs, label: Any) -> None:
        """Takes one sample's outputs and its label."""

    @abc.abstractmethod
    def _value(self) -> float:
        """The number; only asked for when something was scored."""

    def value(self) -> float:
        """The metric over what was added, in `unit`; DataError (DK422) when nothing was scored."""
        if not self.scored:
            raise DataError(
                f"metric {self.name!r}: no sample has a label",
                code="DK422",
                hint="put the labels under the key 'y' of the data, or name them with --label",
            )
        return self._value()


class OutputMetric(Metric):
    """A metric of one output."""

    def __init__(self, name: str, output: str | None = None) -> None:
        """`output`: the output to score; None takes the first float one, or the first when none is float."""
        super().__init__(name)
        self.output = output

    def add(self, outputs: Outputs, label: Any) -> None:
        """Takes one sample's outputs and its label."""
        if label is None:
            self.unscored += 1
            return
        self._add(self._chosen(outputs), np.asarray(label))

    def _chosen(self, outputs: Outputs) -> Array:
        if self.output is not None:
            if self.output not in outputs:
                raise UsageError(
                    f"metric {self.name!r}: the model has no output {self.output!r}",
                    code="DK421",
                    context=[f"outputs: {', '.join(outputs)}"],
                )
            return as_array(outputs[self.output])
        arrays = [as_array(value) for value in outputs.values()]
        return next((array for array in arrays if kind_of(array.dtype) == "float"), arrays[0])

    @abc.abstractmethod
    def _add(self, output: Array, label: Array) -> None:
        """Takes the chosen output and the label of one sample."""


class TopK(OutputMetric):
    """Share of rows whose true class is among the k largest outputs, in percent.

    output [rows..., classes] with one integer label a row; a single column is a probability of class 1; an integer or
    string output is the predicted class itself. Negative labels under a class axis mean "not scored", as in PyTorch.
    """

    unit = "%"
    k = 1

    def __init__(self, name: str, output: str | None = None) -> None:
        super().__init__(name, output)
        self._right = 0

    def _add(self, output: Array, label: Array) -> None:
        right, known = _hits(self.name, output, label.ravel(), self.k)
        self._right += int(np.count_nonzero(right & known))
        self.scored += int(np.count_nonzero(known))
        self.unscored += int(np.count_nonzero(~known))

    def _value(self) -> float:
        return 100.0 * self._right / self.scored


class Top5(TopK):
    """As `TopK`, k = 5."""

    k = 5


def _hits(name: str, output: Array, labels: Array, k: int) -> tuple[Array, Array]:
    """By row: whether the label is among the k best, and whether the row is scored."""
    if kind_of(output.dtype) != "float":
        _same_count(name, output.size, labels.size, output.shape)
        return output.ravel() == labels.astype(output.dtype), np.ones(labels.size, dtype=bool)
    labels = _class_numbers(name, labels)
    scores = _rows(output, labels.size, name)
    known = labels >= 0
    valid = ~np.isnan(scores).any(axis=1)
    if scores.shape[1] == 1:
        return ((scores[:, 0] >= BINARY_THRESHOLD) == (labels == 1)) & valid, known
    k = min(k, scores.shape[1])
    # Stable, so that equal scores go to the lower class, as argmax has it.
    best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return (best == labels[:, None]).any(axis=1) & valid, known


def _class_numbers(name: str, label: Array) -> Array:
    """Labels as flat int64; whole numbers in a float array are taken as such."""
    labels = label.ravel()
    if labels.dtype.kind not in "iubf" or not np.all(labels == np.floor(labels)):
        raise DataError(f"metric {name!r} needs class numbers as labels, and got {labels.dtype}", code="DK423")
    return labels.astype(np.int64)


def _rows(output: Array, count: int, name: str) -> Array:
    """The output as [count, classes]."""
    values = output.astype(np.float64)
    if values.size == count:
        return values.reshape(count, 1)
    rows = values.reshape(-1, values.shape[-1]) if values.ndim else values.reshape(1, 1)
    _same_count(name, rows.shape[0], count, output.shape)
    return rows


def _same_count(name: str, predictions: int, labels: int, shape: tuple[int, ...]) -> None:
    if predictions != labels:
        raise DataError(
            f"metric {name!r}: {labels} label(s) for {predictions} prediction(s) of an output of shape {list(shape)}",
            code="DK423",
            hint="name the output to score as METRIC:OUTPUT, or give your own metric as path/file.py:function",
        )


class F1(OutputMetric):
    """Harmonic mean of precision and recall, 0 to 1: of class 1 with two classes, else the macro mean over classes."""

    def __init__(self, name: str, output: str | None = None) -> None:
        super().__init__(name, output)
        self._right: Counter[int] = Counter()
        self._predicted: Counter[int] = Counter()
        self._true: Counter[int] = Counter()

    def _add(self, output: Array, label: Array) -> None:
        labels = _class_numbers(self.name, label)
        if kind_of(output.dtype) != "float":
            _same_count(self.name, output.size, labels.size, output.shape)
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


class Auc(OutputMetric):
    """Area under the ROC curve, 0 to 1, of class 1 against class 0; ties count half (Mann-Whitney U).

    The score is the last column (softmax or a single probability). Keeps one float a row.
    """

    def __init__(self, name: str, output: str | None = None) -> None:
        super().__init__(name, output)
        self._scores: list[float] = []
        self._labels: list[int] = []

    def _add(self, output: Array, label: Array) -> None:
        labels = _class_numbers(self.name, label)
        scores = _rows(output, labels.size, self.name)
        if scores.shape[1] > 2:
            raise DataError(f"metric 'auc' needs one or two classes, the output has {scores.shape[1]}", code="DK423")
        margin = scores[:, -1] - (scores[:, 0] if scores.shape[1] == 2 else 0.0)
        known = labels >= 0
        self._scores += margin[known].tolist()
        self._labels += labels[known].tolist()
        self.scored += int(np.count_nonzero(known))
        self.unscored += int(np.count_nonzero(~known))

    def _value(self) -> float:
        scores, labels = np.array(self._scores), np.array(self._labels)
        _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
        ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
        positives = int(np.count_nonzero(labels == 1))
        negatives = labels.size - positives
        if not positives or not negatives:
            raise DataError("metric 'auc' needs labels of both classes", code="DK423")
        return float((ranks[labels == 1].sum() - positives * (positives + 1) / 2) / (positives * negatives))


class MeanError(OutputMetric):
    """Mean absolute error over all values, in the label's units."""

    higher_is_better = False
    power = 1
    _sum = 0.0

    def _add(self, output: Array, label: Array) -> None:
        _same_count(self.name, output.size, label.size, output.shape)
        difference = np.abs(output.ravel().astype(np.float64) - label.ravel().astype(np.float64))
        self._sum += float((difference**self.power).sum())
        self.scored += difference.size

    def _value(self) -> float:
        return float((self._sum / self.scored) ** (1 / self.power))


class RootMeanSquareError(MeanError):
    """Root of the mean squared error over all values, in the label's units."""

    power = 2


class MeanCosine(OutputMetric):
    """Mean over rows of the cosine between the output and the label vector, -1 to 1 (embeddings)."""

    _sum = 0.0

    def _add(self, output: Array, label: Array) -> None:
        _same_count(self.name, output.size, label.size, output.shape)
        width = output.shape[-1] if output.ndim else 1
        ours = output.reshape(-1, width).astype(np.float64)
        theirs = label.reshape(-1, width).astype(np.float64)
        norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
        norms[norms == 0] = np.inf
        self._sum += float(((ours * theirs).sum(axis=1) / norms).sum())
        self.scored += len(ours)

    def _value(self) -> float:
        return self._sum / self.scored


@dataclasses.dataclass(frozen=True, slots=True)
class MetricRow:
    """A row of the metric table: the class that counts it, and one line of help."""

    make: type[OutputMetric]
    help: str


METRICS: dict[str, MetricRow] = {
    "top1": MetricRow(TopK, "share of right classes, percent"),
    "top5": MetricRow(Top5, "share of samples whose class is among the five best, percent"),
    "f1": MetricRow(F1, "F1 of class 1, or macro F1 with more classes, 0 to 1"),
    "auc": MetricRow(Auc, "area under the ROC curve of two classes, 0 to 1"),
    "mae": MetricRow(MeanError, "mean absolute error, in the label's units; lower is better"),
    "rmse": MetricRow(RootMeanSquareError, "root mean squared error, in the label's units; lower is better"),
    "cosine": MetricRow(MeanCosine, "mean cosine between output and label vectors, -1 to 1"),
}


class CustomMetric(Metric):
    """A user's function.

    `function(outputs, label)`: outputs of one sample by name (arrays) and its label, returns a number; the metric is
    the mean. When its second parameter is called `labels`, it is called once with the lists of all outputs and labels,
    which a corpus-wide number (CER, AUC) needs. `function.higher_is_better = False` and `function.unit = "%"` are read.
    """

    def __init__(self, name: str, function: Callable[[Any, Any], Any]) -> None:
        super().__init__(name)
        self.unit = str(getattr(function, "unit", ""))
        self.higher_is_better = bool(getattr(function, "higher_is_better", True))
        self._function = function
        self._whole = list(inspect.signature(function).parameters)[1:2] == ["labels"]
        self._outputs: list[dict[str, Any]] = []
        self._labels: list[Any] = []
        self._sum = 0.0

    def add(self, outputs: Outputs, label: Any) -> None:
        """Takes one sample's outputs and its label."""
        if label is None:
            self.unscored += 1
            return
        self.scored += 1
        if self._whole:
            self._outputs.append(dict(outputs))
            self._labels.append(label)
        else:
            self._sum += self._number(dict(outputs), label)

    def _number(self, outputs: Any, labels: Any) -> float:
        try:
            return float(self._function(outputs, labels))
        except (Exception, SystemExit) as problem:  # a user's code: whatever it raises is the answer
            raise DataError(
                f"metric {self.name!r} failed: {type(problem).__name__}: {problem}",
                code="DK424",
                hint="it is called as function(outputs: dict of arrays, label) for each sample and returns a number",
            ) from problem

    def _value(self) -> float:
        return self._number(self._outputs, self._labels) if self._whole else self._sum / self.scored


def make_metric(name: str) -> Metric:
    """The metric of that name: a row of `METRICS`, `row:output`, `module:function` or `path/file.py:function`.

    Raises UsageError (DK420) for a name that is none of these, with the nearest one.
    """
    head, _, tail = name.partition(":")
    if head in METRICS:
        return METRICS[head].make(name, tail or None)
    if tail:
        return CustomMetric(name, load_function(name))
    near = difflib.get_close_matches(name, METRICS, n=1)
    raise UsageError(
        f"there is no metric {name!r}",
        code="DK420",
        context=[f"{row}: {entry.help}" for row, entry in METRICS.items()],
        hint=f"did you mean {near[0]!r}?" if near else "give your own as path/file.py:function",
    )


def load_function(reference: str) -> Callable[[Any, Any], Any]:
    """The function that `module:function` or `path/file.py:function` names; runs that module's code.

    Raises UsageError (DK420) when the file, module or function is not there or is no function of two arguments.
    """
    # From the right: a Windows path has a colon of its own.
    place, _, attribute = reference.rpartition(":")
    try:
        with contextlib.redirect_stdout(sys.stderr):  # our stdout is for the report
            module = _load_file(Path(place)) if place.endswith(".py") else _import(place)
    except (Exception, SystemExit) as problem:  # a user's module: whatever its import raises is the answer
        text = f"cannot load the metric {reference!r}: {type(problem).__name__}: {problem}"
        raise UsageError(text, code="DK420") from problem
    function = getattr(module, attribute, None)
    if not callable(function):
        raise UsageError(f"{place} has no function {attribute!r}", code="DK420")
    found: Callable[[Any, Any], Any] = function
    return found


def _import(module: str) -> ModuleType:
    # A worker's path lacks the current folder, which `python -m` would have.
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    return importlib.import_module(module)


def _load_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"_deploykit_metric_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot read {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def drop(metric: Metric, reference: float, candidate: float) -> float:
    """How much worse the candidate is, in the metric's unit: positive when worse, whichever way is better."""
    difference = reference - candidate if metric.higher_is_better else candidate - reference
    return difference if math.isfinite(difference) else math.inf
