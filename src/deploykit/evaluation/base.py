"""What every metric is: one number over labelled samples, counted sample by sample."""

from __future__ import annotations

import abc
import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.errors import DataError, UsageError
from deploykit.parity import Array, as_array, kind_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    Outputs = Mapping[str, Any]

OTHER_OUTPUT = "name the output to score as METRIC:OUTPUT, or give your own metric as path/file.py:function"


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """A metric as it was asked for: `NAME[:OUTPUT][,OPTION=VALUE]...`.

    text: the whole of it. output: the output to score, or None. models: files that may hold a vocabulary.
    """

    text: str
    output: str | None = None
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    models: Sequence[Path] = ()

    def whole_number(self, option: str, default: int) -> int:
        """An option as a whole number; UsageError (DK427) for anything else."""
        try:
            return int(self.options.get(option, default))
        except ValueError as problem:
            raise self.refuse(option, "a whole number") from problem

    def switch(self, option: str, *, default: bool) -> bool:
        """An option as yes or no; UsageError (DK427) for anything else."""
        return self.choice(option, ("yes", "no"), "yes" if default else "no") == "yes"

    def choice(self, option: str, choices: Sequence[str], default: str) -> str:
        """An option that takes one of a few words; UsageError (DK427) for another one."""
        value = self.options.get(option, default)
        if value not in choices:
            raise self.refuse(option, " or ".join(choices))
        return value

    def refuse(self, option: str, wanted: str) -> UsageError:
        """The error for an option's value (not raised here)."""
        text = f"metric {self.text!r}: {option} takes {wanted}, and got {self.options[option]!r}"
        return UsageError(text, code="DK427")


class Metric(abc.ABC):
    """One number over labelled samples; one whose label is None (a stream's frame without a truth) is not scored.

    pairs: numerator and denominator of each sample where the metric is a function of the sum of the first over the sum
    of the second, which a paired test needs; empty where it is not.
    """

    unit: str = ""
    higher_is_better: bool = True

    def __init__(self, name: str) -> None:
        self.name = name
        self.scored = self.unscored = 0
        self.pairs: list[tuple[float, float]] = []

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


class RequestedMetric(Metric):
    """A metric of the table, which is asked for by name.

    accepts: the options it takes after a comma.
    """

    accepts: tuple[str, ...] = ()

    def __init__(self, request: Request) -> None:
        """`request.output`: the output to score; None lets the metric choose."""
        super().__init__(request.text)
        self.output = request.output


class OutputMetric(RequestedMetric):
    """A metric of one output: the named one, or the first float one, or the first when none is float."""

    def add(self, outputs: Outputs, label: Any) -> None:
        """Takes one sample's outputs and its label."""
        if label is None:
            self.unscored += 1
            return
        self._add(self._chosen(outputs), np.asarray(label))

    def _chosen(self, outputs: Outputs) -> Array:
        if self.output is not None:
            return named_output(self.name, outputs, self.output)
        arrays = [as_array(value) for value in outputs.values()]
        return next((array for array in arrays if kind_of(array.dtype) == "float"), arrays[0])

    @abc.abstractmethod
    def _add(self, output: Array, label: Array) -> None:
        """Takes the chosen output and the label of one sample."""


class RatioMetric(OutputMetric):
    """A metric that is one sum over another: right ones over all, errors over characters."""

    scale = 1.0

    def _count(self, numerator: float, denominator: float, scored: int) -> None:
        self.pairs.append((float(numerator), float(denominator)))
        self.scored += scored

    def _value(self) -> float:
        return self.scale * self._ratio()

    def _ratio(self) -> float:
        numerator, denominator = np.array(self.pairs).sum(axis=0)
        if not denominator:
            return float("inf") if numerator else 0.0
        return float(numerator / denominator)


def named_output(metric: str, outputs: Outputs, name: str) -> Array:
    """The output of that name; UsageError (DK421) when the model has none."""
    if name not in outputs:
        raise UsageError(
            f"metric {metric!r}: the model has no output {name!r}",
            code="DK421",
            context=[f"outputs: {', '.join(outputs)}"],
        )
    return as_array(outputs[name])


def class_numbers(name: str, label: Array) -> Array:
    """Labels as int64 of the same shape; whole numbers in a float array are taken as such. DataError (DK423)."""
    if label.dtype.kind not in "iubf" or not np.all(label == np.floor(label)):
        raise DataError(f"metric {name!r} needs class numbers as labels, and got {label.dtype}", code="DK423")
    return label.astype(np.int64)


def same_count(name: str, predictions: int, labels: int, shape: tuple[int, ...]) -> None:
    """DataError (DK423) unless there are as many predictions as labels."""
    if predictions != labels:
        raise misfit(
            name, f"{labels} label(s) for {predictions} prediction(s) of an output of shape {list(shape)}", OTHER_OUTPUT
        )


def misfit(name: str, why: str, hint: str = "") -> DataError:
    """The error for a label and an output that do not belong together (not raised here)."""
    return DataError(f"metric {name!r}: {why}", code="DK423", hint=hint)
