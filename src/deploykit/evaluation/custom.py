"""A user's own metric: `module:function` or `path/file.py:function`."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.errors import DataError, UsageError
from deploykit.evaluation.base import Metric

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from deploykit.evaluation.base import Outputs


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
            self.pairs.append((self._number(dict(outputs), label), 1.0))

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
        if self._whole:
            return self._number(self._outputs, self._labels)
        return sum(number for number, _ in self.pairs) / self.scored


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
    sys.modules[spec.name] = module  # a dataclass looks for its own module there
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)  # as for a script: its neighbours can be imported
    spec.loader.exec_module(module)
    return module
