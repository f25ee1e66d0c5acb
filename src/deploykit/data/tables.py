"""Tables: one row a sample, one column an input; `.csv` and `.jsonl` by the standard library, `.parquet` by pyarrow."""

from __future__ import annotations

import contextlib
import csv
import importlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit import lazy
from deploykit.data.dtypes import cast, numpy_dtype
from deploykit.data.fitting import match_names
from deploykit.data.samples import Sample
from deploykit.errors import DataError, MissingDependencyError
from deploykit.io import existing_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from deploykit.artifact import TensorSpec
    from deploykit.data.samples import Wanted
    from deploykit.report import Finding

Array = np.ndarray[Any, Any]
Row = dict[str, Any]
_ROWS_AT_ONCE = 256


class TableSource:
    """Rows of a table as samples; columns without an input are left out with a note.

    A cell holds a number, a string or a (nested) list: the value of one sample, whose leading axis may be left out.
    """

    def __init__(self, path: Path, rows: Callable[[Path], Iterator[Row]], wanted: Wanted, total: int | None) -> None:
        """rows: reads the file. total: the number of rows; None: counted here by reading once."""
        existing_file(path, "data file")
        self.description = path.name
        self._path = path
        self._rows = rows
        self._wanted = wanted
        self._specs = {spec.name: spec for spec in wanted.inputs}
        first = next(iter(rows(path)), None)
        self.total: int = 0 if first is None else sum(1 for _ in rows(path)) if total is None else total
        self.findings: list[Finding] = []
        self._names: dict[str, str] = {}
        self.labelled = False
        if first is not None:
            self._names, self.findings = match_names(first, wanted, path.name, extra=True)
            self.labelled = wanted.label_name in first

    def read(self, keep: Sequence[int] | None) -> Iterator[Sample]:
        """Yields one sample a row."""
        kept = None if keep is None else set(keep)
        for index, row in enumerate(self._rows(self._path)):
            if kept is not None and index not in kept:
                continue
            name = f"row {index}"
            feeds = {owner: self._value(row, column, self._specs[owner], name) for column, owner in self._names.items()}
            yield Sample(feeds, _label(row.get(self._wanted.label_name or "")), name)

    def _value(self, row: Row, column: str, spec: TensorSpec, name: str) -> Array:
        where = f"column {column!r} in {name} of {self.description}"
        value = row.get(column)
        if value is None or (value == "" and spec.dtype != "string"):
            raise DataError(
                f"{where} is empty",
                code="DK302",
                file=self._path,
                tensor=spec.name,
                hint="fill the cell, or leave the row out",
            )
        return _shaped(_array(value, spec, where), spec)


def _array(value: Any, spec: TensorSpec, where: str) -> Array:
    wanted = numpy_dtype(spec.dtype)
    try:
        if isinstance(value, str) and spec.dtype != "string":
            value = json.loads(value) if value.lstrip().startswith("[") else _number(value)
        if spec.dtype == "string":
            return np.array(value, object)
        # Text has no dtype: a whole number is a fine float.
        array = np.array(value, np.float64) if wanted.kind in "fV" else np.array(value)
    except (ValueError, TypeError) as problem:
        raise DataError(
            f"{where} is not a value for input {spec.name!r}: {problem}",
            code="DK308",
            tensor=spec.name,
            context=[f"expected {spec.describe()}"],
        ) from problem
    return cast(array, spec, where)[0]


def _number(text: str) -> float | int | bool:
    words = {"true": True, "false": False}
    if text.strip().lower() in words:
        return words[text.strip().lower()]
    try:
        return int(text)
    except ValueError:
        return float(text)


def _shaped(array: Array, spec: TensorSpec) -> Array:
    if spec.shape is None or array.ndim >= len(spec.shape):
        return array
    if array.ndim == len(spec.shape) - 1:
        return array[None]
    return array.reshape((1,) * len(spec.shape)) if array.size == 1 else array


def _label(value: Any) -> Any:
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return _number(value)
        return value
    return np.array(value) if isinstance(value, list) else value


def table_source(path: Path, wanted: Wanted) -> TableSource:
    """The rows of a table by its suffix.

    Raises DataError: DK301 columns, DK302 unreadable; MissingDependencyError for `.parquet` without pyarrow.
    """
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return TableSource(path, _parquet_rows, wanted, _parquet_total(path))
    return TableSource(path, _csv_rows if suffix == ".csv" else _jsonl_rows, wanted, None)


def _csv_rows(path: Path) -> Iterator[Row]:
    with _named(path), path.open(encoding="utf-8-sig", newline="") as stream:
        reader = csv.DictReader(stream)
        for row in reader:
            if None in row:
                raise _unreadable(path, f"line {reader.line_num} has more cells than the header")
            yield row


def _jsonl_rows(path: Path) -> Iterator[Row]:
    with _named(path), path.open(encoding="utf-8") as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            row = json.loads(line)
            if not isinstance(row, dict):
                raise _unreadable(path, f'line {number} is not an object like {{"x": [1.0, 2.0], "y": 3}}')
            yield row


def _parquet() -> Any:
    if not lazy.installed("pyarrow"):
        raise MissingDependencyError(
            "the package 'pyarrow' is needed for .parquet files, and it is not installed", hint="pip install pyarrow"
        )
    return importlib.import_module("pyarrow.parquet")


def _parquet_total(path: Path) -> int:
    existing_file(path, "data file")
    parquet = _parquet()
    with _named(path):
        return int(parquet.read_metadata(path).num_rows)


def _parquet_rows(path: Path) -> Iterator[Row]:
    parquet = _parquet()
    with _named(path), parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE):
            yield from batch.to_pylist()


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Names the file in what its reader raises (pyarrow's ArrowInvalid is a ValueError too)."""
    try:
        yield
    except (ValueError, csv.Error, OSError) as problem:
        raise _unreadable(path, str(problem)) from problem


def _unreadable(path: Path, why: str) -> DataError:
    return DataError(
        f"cannot read {path.name}: {why}",
        code="DK302",
        file=path,
        hint="the file must be UTF-8 text with one row or one JSON object a line, or a parquet file",
    )
