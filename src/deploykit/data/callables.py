"""Samples from the user's own code: `package.module:callable` or `path/file.py:callable`."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import itertools
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.data.samples import Sample
from deploykit.errors import DataError
from deploykit.io import existing_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from deploykit.data.samples import Wanted
    from deploykit.report import Finding


class CallableSource:
    """What a function without arguments returns: an iterable of feeds.

    A feed is {input: array}, with its label under the label's name if it has one, or a pair (feed, label).
    The function is called once for every pass; a result with a length has a known total.
    """

    def __init__(self, module: str, name: str, wanted: Wanted) -> None:
        """Imports the module and looks at the first sample; DataError (DK306) for what fails in there."""
        self.description = f"{Path(module).name}:{name}"
        self.findings: list[Finding] = []
        self._wanted = wanted
        self._function = load_callable(module, name)
        made = _made(self._function, self.description)
        self.total: int | None = len(made) if hasattr(made, "__len__") else None
        items = _each(made, self.description)
        first = list(itertools.islice(items, 1))
        self.labelled = bool(first) and self._sample(first[0], 0).label is not None
        # A generator may be expensive to start: the first pass goes on with the one that was looked into.
        self._started: Iterator[Any] | None = itertools.chain(first, items)

    def read(self, keep: Sequence[int] | None) -> Iterator[Sample]:
        """Yields what the function yields."""
        items, self._started = self._started, None
        if items is None:
            items = guarded(self._function, self.description)
        kept = None if keep is None else set(keep)
        for index, item in enumerate(items):
            if kept is None or index in kept:
                yield self._sample(item, index)

    def _sample(self, item: Any, index: int) -> Sample:
        label = None
        if isinstance(item, tuple) and len(item) == 2:
            item, label = item
        if not isinstance(item, dict):
            raise DataError(
                f"{self.description} yields {type(item).__name__} as sample {index}, and feeds are needed",
                code="DK306",
                hint="yield {'input name': array}, or ({'input name': array}, label)",
            )
        return _split(item, label, f"sample {index}", self._wanted)


def guarded(function: Callable[..., Any], where: str) -> Iterator[Any]:
    """What the function yields; DataError (DK306) for what fails in it, and when it returns nothing to iterate."""
    return _each(_made(function, where), where)


def _made(function: Callable[..., Any], where: str) -> Any:
    try:
        with _off_stdout():
            made = function()
    except (Exception, SystemExit) as problem:  # the user's code may raise anything
        raise _failed(where, problem) from problem
    if not hasattr(made, "__iter__") or isinstance(made, (str, bytes, dict)):
        raise DataError(
            f"{where} returns {type(made).__name__}, and an iterable of feeds is needed",
            code="DK306",
            hint="yield {'input name': array} for each sample",
        )
    return made


def _each(made: Any, where: str) -> Iterator[Any]:
    items = iter(made)
    while True:
        try:
            with _off_stdout():
                item = next(items)
        except StopIteration:
            return
        except (Exception, SystemExit) as problem:  # the user's code may raise anything
            raise _failed(where, problem) from problem
        yield item


def _split(item: Mapping[str, Any], label: Any, name: str, wanted: Wanted) -> Sample:
    feeds = dict(item)
    inputs = {spec.name for spec in wanted.inputs}
    if label is None and wanted.label_name in feeds:
        label = feeds[wanted.label_name]
    if wanted.label_name not in inputs:
        feeds.pop(wanted.label_name or "", None)
    return Sample(feeds, label, name)


def load_callable(module: str, name: str) -> Callable[..., Any]:
    """The callable `name` of `package.module` or of a `.py` file; the user's code runs here.

    Raises InvalidFileError for a file that is not there, DataError (DK306) for anything that fails in it.
    """
    where = f"{module}:{name}"
    try:
        found = getattr(_from_file(Path(module)) if module.endswith(".py") else _from_path(module), name)
    except AttributeError as problem:
        raise DataError(f"{module} has no {name!r}", code="DK306", hint=f"define `def {name}():` in it") from problem
    if not callable(found):
        raise DataError(
            f"{where} is {type(found).__name__}, and a callable is needed",
            code="DK306",
            hint=f"write `def {name}(): yield {{'input name': array}}`",
        )
    loaded: Callable[..., Any] = found
    return loaded


def _from_file(path: Path) -> Any:
    existing_file(path, "Python file")
    spec = importlib.util.spec_from_file_location(f"_deploykit_data_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise DataError(f"{path} cannot be loaded as a Python file", code="DK306", file=path)
    module = importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)  # as for a script: its neighbours can be imported, later too
    sys.modules[spec.name] = module  # a dataclass looks for its own module there
    try:
        with _off_stdout():
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as problem:  # the user's code may raise anything
        raise _failed(str(path), problem) from problem
    return module


def _from_path(name: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # a console script does not have the current folder on its path
    try:
        with _off_stdout():
            return importlib.import_module(name)
    except ModuleNotFoundError as problem:
        if problem.name is None or not name.startswith(problem.name):
            raise _failed(name, problem) from problem
        raise DataError(
            f"there is no module {problem.name!r} and no file {name!r}",
            code="DK306",
            hint="give package.module:callable, or path/file.py:callable",
        ) from problem
    except (Exception, SystemExit) as problem:  # the user's code may raise anything
        raise _failed(name, problem) from problem


def _off_stdout() -> contextlib.AbstractContextManager[Any]:
    """What the user's code prints goes to stderr: stdout is for the result, which a script may read as JSON."""
    return contextlib.redirect_stdout(sys.stderr)


def _failed(where: str, problem: BaseException) -> DataError:
    frames = traceback.extract_tb(problem.__traceback__)
    own = [frame for frame in frames if "deploykit" not in Path(frame.filename).parts] or frames
    place = [f"in {own[-1].filename}, line {own[-1].lineno}: {own[-1].line}"] if own else []
    return DataError(
        f"{where} failed: {type(problem).__name__}: {problem}",
        code="DK306",
        context=place,
        hint="run the function in Python alone; it is called without arguments",
    )
