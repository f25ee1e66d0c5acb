"""What a fitted model takes: one matrix, or one input for each column where columns differ in type or go by name."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.artifact import TensorSpec
from deploykit.data.specs import format_input
from deploykit.errors import MissingDependencyError, UsageError
from deploykit.exporters.sklearn_parts import children, fills_text, first, is_estimator, parts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from deploykit.runtime import Feeds

_DTYPES = ("float32", "float64", "int64", "string", "bool")
_SHOWN = 6


@dataclasses.dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of the ONNX and how they become what the estimator is called with.

    names: of the columns, where the estimator knows them. by_column: each input is one column. text: one input of whole
    texts, one a row. empty_is_missing: an empty text stands for a missing one.
    """

    specs: tuple[TensorSpec, ...]
    names: tuple[str, ...] | None
    by_column: bool
    text: bool = False
    empty_is_missing: bool = False

    @property
    def batch(self) -> int | str:
        """The first dimension: a symbol, or the number that the user gave."""
        shape = self.specs[0].shape
        return shape[0] if shape else "batch"

    def table(self, feeds: Feeds) -> Any:
        """What the estimator is called with: the same numbers, at the precision that it was fitted with (float64).

        Raises MissingDependencyError for models with named columns where pandas is not installed.
        """
        arrays = [_as_fitted(np.asarray(feeds[spec.name]), self.empty_is_missing) for spec in self.specs]
        if self.text:
            return arrays[0].reshape(-1).tolist()
        if not self.by_column:
            return arrays[0]
        columns = [array.reshape(-1) for array in arrays]
        if self.names is None:
            table = np.empty((len(columns[0]), len(columns)), object)
            for at, column in enumerate(columns):
                table[:, at] = column
            kinds = {column.dtype.kind for column in columns}
            return table if "O" in kinds else table.astype(np.float64)
        try:
            import pandas
        except ImportError as problem:
            raise MissingDependencyError(
                "the package 'pandas' is needed for a model that was fitted with named columns",
                hint="pip install 'deploykit[sklearn]'",
            ) from problem
        return pandas.DataFrame(dict(zip(self.names, columns, strict=True)))


def _as_fitted(array: np.ndarray[Any, Any], empty_is_missing: bool) -> np.ndarray[Any, Any]:
    if array.dtype.kind == "f":
        return array.astype(np.float64)
    if array.dtype.kind not in "USO":
        return array
    texts = array.astype(object)
    if empty_is_missing:
        texts[texts == ""] = np.nan
    return texts


def inputs_of(
    model: Any, given: Sequence[TensorSpec], sample: Mapping[str, np.ndarray[Any, Any]], path: Path
) -> Inputs:
    """The inputs: found in the fitted model, with the dtypes of a sample where it has strings, and as the user says.

    Raises UsageError (DK672) when they cannot be found or are no tensors, (DK627) when `given` contradicts the model.
    """
    start = first(model)
    if _takes_text(start):
        spec = given[0] if given else TensorSpec("text", "string", ("batch",))
        _check_text(spec, given, path)
        return Inputs((spec,), None, by_column=False, text=True)
    _refuse_other_tables(start, path)
    count = getattr(model, "n_features_in_", None) or getattr(start, "n_features_in_", None) or _width(given)
    if count is None:
        raise UsageError(
            f"{path.name} does not say how many features it takes",
            code="DK672",
            file=path,
            hint="--input 'X:float32[batch,30]'",
        )
    count = int(count)
    names = getattr(model, "feature_names_in_", None)
    known = tuple(str(name) for name in names) if names is not None else None
    kinds = _column_kinds(start, count)
    named = known or tuple(f"x{at}" for at in range(count))
    kinds = [_sampled(kind, sample.get(name)) for kind, name in zip(kinds, named, strict=True)]
    by_column = len(set(kinds)) > 1 or _chooses_by_name(model)
    if len(given) > 1:
        by_column = True
    elif len(given) == 1 and given[0].shape is not None and len(given[0].shape) > 1 and given[0].shape[1] == count > 1:
        by_column = _chooses_by_name(model)
    missing = any(fills_text(part) for _, part in parts(model))
    if by_column:
        specs = tuple(TensorSpec(name, kind, ("batch", 1)) for name, kind in zip(named, kinds, strict=True))
        return Inputs(_by_name(specs, given, path), known, by_column=True, empty_is_missing=missing)
    spec = TensorSpec("X", kinds[0] if kinds else "float32", ("batch", count))
    return Inputs((_whole(spec, given, path),), known, by_column=False, empty_is_missing=missing)


def _width(given: Sequence[TensorSpec]) -> int | None:
    """The number of features, where the user describes one matrix."""
    shape = given[0].shape if len(given) == 1 else None
    return shape[1] if shape is not None and len(shape) == 2 and isinstance(shape[1], int) else None


def _takes_text(start: Any) -> bool:
    return hasattr(start, "vocabulary_") and hasattr(start, "ngram_range")


def _refuse_other_tables(start: Any, path: Path) -> None:
    """Dictionaries and hashed tokens are no tensors."""
    if type(start).__name__ in ("DictVectorizer", "FeatureHasher", "HashingVectorizer"):
        raise UsageError(
            f"{type(start).__name__} in {path.name} takes Python objects, and ONNX models take tensors",
            code="DK672",
            file=path,
            hint="do this step in your own code, and export the rest: save pipeline[1:]",
        )


def _column_kinds(start: Any, count: int) -> list[str]:
    """The dtype of each column: that of an encoder's categories, of an imputer's values, and float32 otherwise."""
    if not hasattr(start, "transformers_"):
        return _kinds(start, count)
    kinds = ["float32"] * count
    indices = getattr(start, "_transformer_to_input_indices", {})
    for name, part, _ in start.transformers_:
        places = list(indices.get(name, ()))
        if is_estimator(part):
            inner = first(part)
            found = ["string"] * len(places) if _takes_text(inner) else _column_kinds(inner, len(places))
            for place, kind in zip(places, found, strict=True):
                kinds[int(place)] = kind
    return kinds


def _kinds(part: Any, count: int) -> list[str]:
    for attribute in ("categories_", "statistics_"):
        values = getattr(part, attribute, None)
        if values is not None and len(values) == count:
            return [_kind(np.asarray(value)) for value in values]
    union = [inner for name, inner in children(part) if getattr(part, "transformer_list", None)]
    for inner in union:
        found = _kinds(first(inner), count)
        if "string" in found:
            return found
    return ["float32"] * count


def _kind(values: np.ndarray[Any, Any]) -> str:
    if values.dtype.kind in "OUST":
        items = values.ravel().tolist()
        if any(isinstance(item, str) for item in items):
            return "string"
        numbers = [item for item in items if item is not None]
        return "int64" if numbers and all(isinstance(item, int) for item in numbers) else "float32"
    if values.dtype.kind == "b":
        return "bool"
    return "int64" if values.dtype.kind in "iu" else "float32"


def _sampled(kind: str, array: np.ndarray[Any, Any] | None) -> str:
    return "string" if array is not None and array.dtype.kind in "US" else kind


def _chooses_by_name(model: Any) -> bool:
    """Whether a ColumnTransformer chooses columns by name, which it can only where inputs have these names."""
    for _, part in parts(model):
        for row in getattr(part, "transformers_", ()):
            columns = row[2]
            if isinstance(columns, str) or (
                isinstance(columns, (list, tuple)) and columns and isinstance(columns[0], str)
            ):
                return True
    return False


def _whole(spec: TensorSpec, given: Sequence[TensorSpec], path: Path) -> TensorSpec:
    if not given:
        return spec
    user = given[0]
    shape = user.shape or ()
    if len(shape) != 2 or (isinstance(shape[1], int) and shape[1] != spec.shape[1]) or user.dtype not in _DTYPES:  # type: ignore[index]
        raise _contradicts(user, [spec], path)
    return dataclasses.replace(user, shape=(shape[0], spec.shape[1]))  # type: ignore[index]


def _by_name(specs: Sequence[TensorSpec], given: Sequence[TensorSpec], path: Path) -> tuple[TensorSpec, ...]:
    users = {spec.name: spec for spec in given}
    for spec in given:
        fits = spec.shape is not None and len(spec.shape) == 2 and spec.shape[1] == 1 and spec.dtype in _DTYPES
        if spec.name not in {found.name for found in specs} or not fits:
            raise _contradicts(spec, specs, path)
    first_dims = {spec.shape[0] for spec in given if spec.shape}
    if len(first_dims) > 1:
        raise _contradicts(given[1], specs, path)
    batch = next(iter(first_dims), "batch")
    found = [users.get(spec.name, dataclasses.replace(spec, shape=(batch, 1))) for spec in specs]
    return tuple(found)


def _check_text(spec: TensorSpec, given: Sequence[TensorSpec], path: Path) -> None:
    rank = len(spec.shape or ())
    if len(given) > 1 or spec.dtype != "string" or rank not in (1, 2) or (rank == 2 and spec.shape[1] != 1):  # type: ignore[index]
        raise _contradicts(spec, [TensorSpec("text", "string", ("batch",))], path)


def _contradicts(user: TensorSpec, specs: Sequence[TensorSpec], path: Path) -> UsageError:
    shown = ", ".join(format_input(spec) for spec in specs[:_SHOWN]) + (", ..." if len(specs) > _SHOWN else "")
    return UsageError(
        f"input {user.name!r} is described as {user.describe()}, and {path.name} does not take that",
        code="DK627",
        file=path,
        tensor=user.name,
        context=[f"it takes {shown}", f"dtypes: {', '.join(_DTYPES)}"],
        hint=f"--input '{format_input(specs[0])}'",
    )
