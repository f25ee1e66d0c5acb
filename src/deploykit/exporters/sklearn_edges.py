"""Rows that rounding decides: on a threshold, or between two classes that are equally likely.

The file computes in float32 what the model computes in double precision. A tree that asks `x <= t` behind a scaler can
then answer otherwise where x is t but for the last bit, and of equally likely classes another comes first. Both are
told from mistakes by asking the model itself: the file's answer has to be one that the model gives for inputs which
differ from the row by rounding alone, or its label one of those that are the most likely within the tolerance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.exporters import sklearn_data
from deploykit.exporters.sklearn_outputs import LABEL, PROBABILITIES, SCORES, expected
from deploykit.parity import TOLERANCES
from deploykit.report import Finding, failure, note, warning

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.exporters.sklearn_source import Array, SklearnSource
    from deploykit.runtime import Feeds, Outputs

# Some units in the last place: a scaler subtracts and divides, and each rounds once.
_ROUNDING = 2.0**-21
_TURNS = 24
_MOST_SHARE = 0.05


class Edges:
    """Holds the model's and the file's answers for one call, and settles the rows that rounding decides."""

    def __init__(self, source: SklearnSource, wanted: Mapping[str, str], names: Sequence[str]) -> None:
        """wanted: the model's method by output. names: the file's outputs."""
        self.expected: Outputs = {}
        self.rows = self.on_threshold = self.tied = 0
        self.placed: Feeds | None = None  # feeds that were put on thresholds on purpose, and how many of them differ
        self.placed_off = 0
        self._labels: set[Any] = set()
        self._source, self._wanted, self._names = source, wanted, names
        self._found: Outputs = {}
        self._generator = np.random.default_rng(0)
        self._centers: Array | None = None

    def look(self, feeds: Feeds, answers: Mapping[str, Any], found: Outputs) -> Outputs:
        """Takes one call, the model's answers by method and the file's outputs; returns the answers by output."""
        self.expected = {name: expected(name, self._wanted, answers, found[name]) for name in self._names}
        self._found = dict(found)
        rows = len(next(iter(feeds.values())))
        placed = self.placed is not None and all(feeds[name] is array for name, array in self.placed.items())
        self.rows += 0 if placed else rows
        if LABEL in self.expected and self.expected[LABEL].size:
            self._labels |= set(np.ravel(self.expected[LABEL]).tolist())
        if any(self.expected[name].shape != found[name].shape for name in self._names):
            return self.expected  # the comparison says so
        off = self._rows_off(self.expected, found)
        if off.any():
            tied = off & self._ties(off)
            self._take(tied)
            off &= ~tied
            self.tied += int(tied.sum())
        if off.any():
            near = self._near(feeds, off)
            self._take(near)
            if placed:
                self.placed_off += int(near.sum())
            else:
                self.on_threshold += int(near.sum())
        return self.expected

    def settled(self, feeds: Feeds) -> Outputs:
        """The file's outputs, with the model's own answers in the rows that rounding decides."""
        del feeds
        return self._found

    def findings(self) -> list[Finding]:
        """How many rows rounding decided; a failure when there are more than such rows can be."""
        found = []
        way = f"--input '{self._double()}' computes in double precision"
        if self.tied:
            text = f"{self.tied} of {self.rows} rows have two classes that are equally likely: their labels may differ"
            found.append(note("DK674", text))
        what = type(self._source.model).__name__
        if self.placed_off:
            text = f"where a value is a threshold of the {what} but for float32 rounding, the file may decide otherwise"
            found.append(note("DK674", f"{text} ({self.placed_off} of the rows that were put there)", hint=way))
        if self.on_threshold:
            text = f"{self.on_threshold} of {self.rows} rows lie on a threshold of the {what} within float32 rounding"
            few = self.on_threshold <= max(1, self.rows * _MOST_SHARE)
            say = warning if few else failure
            found.append(say("DK674", f"{text}: there the file decides as the model does a hair away", hint=way))
        if len(self._labels) == 1 and not self._source.sample:
            text = f"every row of the proof has the same label ({next(iter(self._labels))})"
            found.append(warning("DK674", text, hint="--sample FILE.npz with rows of your own proves more"))
        return found

    def _double(self) -> str:
        spec = self._source.inputs.specs[0]
        return f"{spec.name}:float64[{','.join(map(str, spec.shape or ()))}]"

    def _take(self, rows: Array) -> None:
        for name in self._names:
            axis = _axis(self._found[name], len(rows))
            chosen = rows.reshape([-1 if at == axis else 1 for at in range(self._found[name].ndim)])
            self._found[name] = np.where(chosen, self.expected[name], self._found[name])

    def _rows_off(self, ref: Mapping[str, Array], found: Mapping[str, Array]) -> Array:
        """Whether a row's outputs are off the model's by more than float32 computes."""
        rows = self._count(found)
        off = np.zeros(rows, bool)
        for name in self._names:
            off |= _per_row(_differs(ref[name], found[name]), rows)
        return off

    def _count(self, found: Mapping[str, Array]) -> int:
        name = self._names[0]
        return int(found[name].shape[_axis(found[name], -1)])

    def _ties(self, off: Array) -> Array:
        """Rows where only the label differs, and the file's label is as likely as the model's."""
        name = next((name for name in (PROBABILITIES, SCORES) if name in self.expected), None)
        classes = getattr(self._source.model, "classes_", None)
        if name is None or LABEL not in self.expected or classes is None or isinstance(classes, list):
            return np.zeros(len(off), bool)
        values, label = self.expected[name], self._found[LABEL].reshape(-1)
        same = ~_per_row(_differs(values, self._found[name]), len(off))
        if values.ndim != 2 or len(label) != len(off):
            return np.zeros(len(off), bool)
        limit = 2 * _limit(values)
        if values.shape[1] == 1:
            return same & (np.abs(values[:, 0]) <= limit)
        order = np.asarray(classes)
        order = order.astype(label.dtype) if label.dtype.kind in "iu" else order.astype(str).astype(object)
        hit = label[:, None] == order[None]
        if values.shape[1] != len(order):
            return np.zeros(len(off), bool)
        likely = values.max(axis=1, keepdims=True) - values <= limit
        return np.asarray(same & (hit & likely).any(axis=1))

    def _near(self, feeds: Feeds, off: Array) -> Array:
        """Rows where the file's answer lies among those that the model gives for inputs rounded otherwise."""
        floats = [spec.name for spec in self._source.inputs.specs if spec.dtype.startswith("float")]
        chosen = np.flatnonzero(off)
        if not floats:
            return np.zeros(len(off), bool)
        picked = {name: np.asarray(array)[chosen] for name, array in feeds.items()}
        found = {name: np.take(self._found[name], chosen, _axis(self._found[name], len(off))) for name in self._names}
        low = {name: np.take(self.expected[name], chosen, _axis(self.expected[name], len(off))) for name in self._names}
        high, labels = dict(low), {name: [low[name]] for name in self._names}
        for turn in range(_TURNS):
            answers = self._source.answers({**picked, **self._moved(picked, floats, turn)})
            for name in self._names:
                value = expected(name, self._wanted, answers, found[name])
                if value.dtype.kind == "f":
                    low[name], high[name] = np.minimum(low[name], value), np.maximum(high[name], value)
                else:
                    labels[name].append(value)
        inside = np.ones(len(chosen), bool)
        for name in self._names:
            if low[name].dtype.kind == "f":
                slack = 1e-4 * np.abs(low[name]) + _limit(low[name])
                out = (found[name] < low[name] - slack) | (found[name] > high[name] + slack)
            else:
                out = ~np.any([value == found[name] for value in labels[name]], axis=0)
            inside &= ~_per_row(out, len(chosen))
        near = np.zeros(len(off), bool)
        near[chosen[inside]] = True
        return near

    def _moved(self, feeds: Mapping[str, Array], floats: Sequence[str], turn: int) -> dict[str, Array]:
        """The float inputs in double precision, moved by some of their last bits: all up, all down, or at random."""
        moved = {}
        for at, name in enumerate(floats):
            array = feeds[name].astype(np.float64)
            size = np.maximum(np.abs(array), self._center(at, array.shape))
            sign = {0: 1.0, 1: -1.0}.get(turn)
            steps = sign if sign is not None else self._generator.uniform(-1, 1, array.shape)
            moved[name] = array + size * _ROUNDING * steps
        return moved

    def _center(self, at: int, shape: tuple[int, ...]) -> Any:
        """How large the numbers are that a scaler subtracts: what rounds is the difference."""
        inputs = self._source.inputs
        if self._centers is None:
            count = len(inputs.specs) if inputs.by_column else int((inputs.specs[0].shape or (0, 0))[1])
            columns = sklearn_data.columns_of(self._source.model, count)
            self._centers = np.array([abs(column.center) + column.spread for column in columns])
        if not inputs.by_column:
            return self._centers
        names = [spec.name for spec in inputs.specs if spec.dtype.startswith("float")]
        return self._centers[[spec.name for spec in inputs.specs].index(names[at])]


def _axis(array: Array, rows: int) -> int:
    """The axis of the rows: the first, or the second of outputs that are stacked by target."""
    return 1 if array.ndim >= 3 else 0


def _per_row(differs: Array, rows: int) -> Array:
    axis = _axis(differs, rows)
    return np.asarray(differs.any(axis=tuple(at for at in range(differs.ndim) if at != axis)))


def _differs(ref: Array, found: Array) -> Array:
    if ref.dtype.kind != "f":
        return np.asarray(ref != found)
    with np.errstate(invalid="ignore"):
        close = np.abs(ref - found) <= 1e-4 * np.abs(ref) + _limit(ref)
    return np.asarray(~(close | (ref == found)))


def _limit(values: Array) -> float:
    """The part of the float32 tolerance that is the same for all elements of an output."""
    finite = np.abs(values[np.isfinite(values)]) if values.dtype.kind == "f" else np.abs(values.astype(np.float64))
    return (TOLERANCES["fp32"].atol_factor or 0.0) * float(finite.max(initial=0.0))
