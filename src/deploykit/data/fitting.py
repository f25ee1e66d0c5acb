"""Checks each sample against the inputs of the model: names, ranks, dimensions, dtypes, finite values."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.data.dtypes import cast
from deploykit.data.samples import Sample
from deploykit.errors import DataError
from deploykit.report import Finding, note, warning

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from deploykit.artifact import TensorSpec
    from deploykit.data.samples import Wanted

Array = np.ndarray[Any, Any]


def match_names(
    names: Iterable[str], wanted: Wanted, where: str, *, extra: bool = False
) -> tuple[dict[str, str], list[Finding]]:
    """Which array feeds which input, as {array name: input name}, the labels left out.

    In a one-input model the only array may have any name, and a note says so.
    extra: whether unknown names are let pass with a note (columns of a table).
    Raises DataError (DK301): an unknown name, with the nearest input; an input without data.
    """
    inputs = {spec.name for spec in wanted.inputs}
    given = [name for name in names if name != wanted.label_name or name in inputs]
    unknown = [name for name in given if name not in inputs]
    matched = {name: name for name in given if name in inputs}
    if len(wanted.inputs) == 1 and not matched and len(unknown) == 1:
        only = wanted.inputs[0].name
        said = note("DK321", f"{where}: {unknown[0]!r} is the only array, and is given to input {only!r}", tensor=only)
        return {unknown[0]: only}, [said]
    absent = [name for name in wanted.required if name not in matched]
    if unknown and not (extra and not absent):
        raise _unknown(unknown[0], sorted(inputs), where, wanted)
    if absent:
        raise DataError(
            f"{where} has nothing for input {absent[0]!r}",
            code="DK301",
            tensor=absent[0],
            context=[f"it has {_listed(given)}", f"the model takes {_listed(spec.name for spec in wanted.inputs)}"],
            hint=f"add an array named {absent[0]!r}",
        )
    left = [note("DK325", f"{where}: no input is named {_listed(unknown)}: left out")] if unknown else []
    return matched, left


def _unknown(name: str, inputs: Sequence[str], where: str, wanted: Wanted) -> DataError:
    near = difflib.get_close_matches(name, inputs, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"name each array as its input: {_listed(inputs)}"
    if wanted.label is None and len(inputs) == 1:
        hint = f"name the array {inputs[0]!r}, and the labels 'y' or with --label NAME"
    elif wanted.label is None and not near:
        hint += f"; if {name!r} holds the labels, add --label {name}"
    return DataError(
        f"{where} has an array {name!r}, and the model has no input of that name",
        code="DK301",
        context=[f"the model takes {_listed(inputs)}"],
        hint=hint,
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names) or "nothing"


def is_symbol(dim: int | str) -> bool:
    """Whether a dimension is a name that ties inputs together; `?` and the like only mean that it varies."""
    return isinstance(dim, str) and dim not in {"", "?", "None", "unk"}


def misfit(shape: Sequence[int], spec: TensorSpec) -> str | None:
    """Why an array of this shape does not fit the input, as the hint to give; None when it fits."""
    if spec.shape is None:
        return None
    if len(shape) != len(spec.shape):
        if len(shape) == len(spec.shape) - 1:
            return f"add the leading axis: array[None] has the rank of {spec.describe()}"
        return (
            f"give {spec.name!r} as {spec.describe()}; a leading sample axis is cut off only when the rank is one more"
        )
    wrong = [
        axis
        for axis, (size, dim) in enumerate(zip(shape, spec.shape, strict=True))
        if isinstance(dim, int) and size != dim
    ]
    if not wrong:
        return None
    if len(shape) >= 3 and fits((shape[0], shape[-1], *shape[1:-1]), spec.shape):
        return "the channels are last: transpose the array with np.moveaxis(array, -1, 1)"
    if len(shape) >= 3 and fits((shape[0], *shape[2:], shape[1]), spec.shape):
        return "the channels are first: transpose the array with np.moveaxis(array, 1, -1)"
    axis = wrong[0]
    return f"axis {axis} must be {spec.shape[axis]}, and it is {shape[axis]}"


def fits(shape: Sequence[int], dims: Sequence[int | str]) -> bool:
    """Whether the fixed dimensions agree."""
    return len(shape) == len(dims) and all(
        not isinstance(dim, int) or size == dim for size, dim in zip(shape, dims, strict=True)
    )


def wrong_shape(
    shape: Sequence[int], spec: TensorSpec, where: str, hint: str, *, context: Sequence[str] = (), file: object = None
) -> DataError:
    """The error (DK312) for an array whose shape is not the input's."""
    return DataError(
        f"{where} has shape {tuple(shape)} for input {spec.name!r}",
        code="DK312",
        file=file,
        tensor=spec.name,
        context=[f"expected {spec.describe()}", *context],
        hint=hint,
    )


class Fitter:
    """Turns what a source read into what the model takes, or refuses it; each kind of note is made once."""

    def __init__(self, wanted: Wanted, source: str, findings: list[Finding]) -> None:
        """source: how messages call the data. findings: where notes and warnings go."""
        self._wanted = wanted
        self._source = source
        self._findings = findings
        self._said: set[tuple[str, str]] = set()

    def _say(self, finding: Finding) -> None:
        key = (finding.code, finding.tensor or "")
        if key not in self._said:
            self._said.add(key)
            self._findings.append(finding)

    def fit(self, sample: Sample) -> Sample:
        """The sample with every array checked and in its input's dtype.

        Raises DataError: DK301 names, DK308 dtype, DK309 NaN or infinity in calibration data, DK312 shape.
        """
        feeds = {}
        for spec in self._wanted.inputs:
            if spec.name in sample.feeds:
                feeds[spec.name] = self._array(sample.feeds[spec.name], spec, sample.name)
            elif spec.name not in self._wanted.carried:
                raise DataError(
                    f"{sample.name} of {self._source} has nothing for input {spec.name!r}",
                    code="DK301",
                    tensor=spec.name,
                    context=[f"it has {_listed(sample.feeds)}"],
                    hint=f"add {spec.name!r}: {spec.describe()}",
                )
        for name in sample.feeds:
            if name not in feeds:
                raise _unknown(
                    name,
                    [spec.name for spec in self._wanted.inputs],
                    f"{sample.name} of {self._source}",
                    self._wanted,
                )
        self._check_symbols(feeds, sample.name)
        return Sample(feeds, sample.label, sample.name)

    def _array(self, value: Any, spec: TensorSpec, name: str) -> Array:
        where = f"{name} of {self._source}"
        try:
            array = np.asanyarray(value)
        except ValueError as problem:  # rows of unequal lengths
            raise DataError(
                f"{where}: the value for input {spec.name!r} is not an array: {problem}", code="DK312", tensor=spec.name
            ) from problem
        prepared = self._prepared(array, spec)
        if prepared is not None:
            array = prepared
        hint = misfit(array.shape, spec)
        if hint is not None and array.size == 1 and spec.shape is not None and _all_ones(spec):
            self._say(
                note("DK323", f"{self._source}: one value is given the shape of {spec.describe()}", tensor=spec.name)
            )
            array, hint = array.reshape((1,) * len(spec.shape)), None
        if hint is not None:
            raise wrong_shape(array.shape, spec, where, hint)
        result, said = cast(array, spec, f"{where} for {spec.name!r}")
        if said is not None:
            self._say(note("DK322", f"{self._source}: {said}", tensor=spec.name))
        self._check_finite(result, spec, where)
        # Values may lie unaligned in a map of the file, which is read-only: engines want neither.
        return np.require(result, requirements=["C", "A", "W", "E"])

    def _prepared(self, array: Array, spec: TensorSpec) -> Array | None:
        contract = self._wanted.contract
        if contract is None or array.dtype != np.uint8 or spec.dtype == "uint8" or not contract.prepares(spec.name):
            return None
        return contract.apply(array, spec)

    def _check_finite(self, array: Array, spec: TensorSpec, where: str) -> None:
        if array.dtype.kind not in "fcV":
            return
        finite = np.isfinite(array if array.dtype.kind != "V" else array.astype(np.float32))
        bad = int(array.size - np.count_nonzero(finite))
        if not bad:
            return
        message = f"{where} has {bad} of {array.size} values for input {spec.name!r} that are NaN or infinite"
        hint = "leave the sample out, or replace the values (np.nan_to_num)"
        if self._wanted.purpose == "calibration":
            raise DataError(message, code="DK309", tensor=spec.name, hint=hint)
        self._say(warning("DK327", message, tensor=spec.name, hint=hint))

    def _check_symbols(self, feeds: dict[str, Array], name: str) -> None:
        sizes: dict[str, tuple[int, str]] = {}
        for spec in self._wanted.inputs:
            if spec.shape is None or spec.name not in feeds:
                continue
            for size, dim in zip(feeds[spec.name].shape, spec.shape, strict=True):
                if not is_symbol(dim):
                    continue
                first, owner = sizes.setdefault(str(dim), (size, spec.name))
                if first != size:
                    self._say(
                        warning(
                            "DK326",
                            f"{name} of {self._source}: dimension {dim!r} is {first} in {owner!r} and {size} in "
                            f"{spec.name!r}",
                            tensor=spec.name,
                            hint="inputs that share a dimension must agree: give one .npz a feed, in a folder",
                        )
                    )


def _all_ones(spec: TensorSpec) -> bool:
    return spec.shape is not None and all(not isinstance(dim, int) or dim == 1 for dim in spec.shape)
