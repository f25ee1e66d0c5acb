"""Casts between the dtype of data and the dtype of an input: exact, or obvious and said, or refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.errors import DataError

if TYPE_CHECKING:
    from deploykit.artifact import TensorSpec

Array = np.ndarray[Any, Any]


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy dtype of a TensorSpec's dtype name; strings are objects, bfloat16 and the like are ml_dtypes'.

    Raises DataError (DK314) for what no array holds: sequences, optionals, values of undeclared type.
    """
    if name == "string":
        return np.dtype(object)
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        kind = getattr(ml_dtypes, name, None)
        if kind is None:
            raise DataError(
                f"no array holds values of type {name!r}, so no data can be given to such an input",
                code="DK314",
                hint="deploykit inspect shows the inputs; tensors with a declared type can be fed",
            ) from None
        found: np.dtype[Any] = np.dtype(kind)
        return found


def dtype_name(dtype: np.dtype[Any]) -> str:
    """How a message calls the dtype of an array."""
    return "string" if dtype.kind in "US" else dtype.name


def cast(array: Array, spec: TensorSpec, where: str) -> tuple[Array, str | None]:
    """The array in the dtype of its input, with the note of what was done (None: nothing was changed).

    Taken: the same dtype; floats of another width when nothing overflows; integers of another width when every
    value fits; 0 and 1 for booleans. Integers for a float input are refused: only a preprocessing contract knows
    their scale. where: the array's place, for messages.
    Raises DataError (DK308).
    """
    wanted = numpy_dtype(spec.dtype)
    if array.dtype == wanted and wanted.kind != "O":
        return (array if array.dtype.isnative else array.astype(wanted)), None
    if spec.dtype == "string":
        return _strings(array, spec, where), None
    if spec.dtype == "bfloat16" and array.dtype == np.dtype("V2"):
        return array.view(wanted), None  # numpy saves bfloat16 as two opaque bytes
    given = dtype_name(array.dtype)
    if array.dtype.newbyteorder("=") == wanted:
        return array.astype(wanted), None
    if _is_float(array.dtype) and _is_float(wanted):
        with np.errstate(over="ignore"):
            result = array.astype(wanted)
        lost = int(np.count_nonzero(np.isfinite(array.astype(np.float64)) & ~np.isfinite(result.astype(np.float64))))
        if lost:
            raise _refused(array, spec, where, f"{lost} of its values overflow {spec.dtype}")
        return result, f"{given} data is given as {spec.dtype}"
    if array.dtype.kind in "iub" and wanted.kind in "iu":
        result = array.astype(wanted)
        if not np.array_equal(result, array):
            raise _refused(array, spec, where, f"some of its values do not fit {spec.dtype}")
        return result, f"{given} data is given as {spec.dtype}"
    if array.dtype.kind in "iu" and wanted.kind == "b" and np.isin(array, (0, 1)).all():
        return array.astype(wanted), f"{given} 0 and 1 are given as bool"
    raise _refused(array, spec, where, "the cast could change what the values mean")


def as_numbers(array: Array, spec: TensorSpec) -> Array:
    """Booleans of a model as 0 and 1, for the same model in a format that has floats in their place; others as is."""
    return (
        array.astype(numpy_dtype(spec.dtype)) if array.dtype.kind == "b" and spec.dtype.startswith("float") else array
    )


def _is_float(dtype: np.dtype[Any]) -> bool:
    # bfloat16 and the 8-bit floats of ml_dtypes have kind V.
    return dtype.kind == "f" or "float" in dtype.name


def _strings(array: Array, spec: TensorSpec, where: str) -> Array:
    if array.dtype.kind == "S":
        array = np.char.decode(array, "utf-8")
    if array.dtype.kind == "U" or (array.dtype.kind == "O" and all(isinstance(item, str) for item in array.flat)):
        return array.astype(object)
    raise _refused(array, spec, where, "only strings can be given to it")


def _refused(array: Array, spec: TensorSpec, where: str, why: str) -> DataError:
    given = dtype_name(array.dtype)
    hint = f"save the array as {spec.dtype}"
    if array.dtype.kind in "iu" and _is_float(numpy_dtype(spec.dtype)):
        hint = (
            f"scale it yourself and save it as {spec.dtype}, or set inputs.{spec.name}.preprocess in deploykit.yaml "
            "(scale, mean, std)"
        )
    return DataError(
        f"{where} is {given} and input {spec.name!r} takes {spec.dtype}: {why}",
        code="DK308",
        tensor=spec.name,
        context=[f"expected {spec.describe()}"],
        hint=hint,
    )
