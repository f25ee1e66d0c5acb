"""The samples of one `.npz` or `.npy`: how arrays are cut along their sample axis."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.data.fitting import fits, match_names, misfit, wrong_shape
from deploykit.data.npz_file import StoredArray, open_npy, open_npz
from deploykit.data.samples import Sample
from deploykit.errors import DataError
from deploykit.report import Finding, note, warning

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from deploykit.artifact import TensorSpec
    from deploykit.data.samples import Wanted


@dataclasses.dataclass(frozen=True, slots=True)
class Cut:
    """How an array gives samples: `count` pieces of `size` rows. count None: the whole array for every sample.

    drop_axis: a piece is one row, without its axis. left: rows at the end that fill no piece.
    """

    count: int | None
    size: int = 1
    drop_axis: bool = False
    left: int = 0

    def rows(self, index: int) -> tuple[int, int]:
        """First row and end of a sample."""
        return index * self.size, (index + 1) * self.size


WHOLE = Cut(None)


def cut_of(shape: Sequence[int], dims: Sequence[int | str] | None, *, image: bool = False) -> Cut:
    """How an array of this shape is cut for an input of these dimensions (None: rank unknown).

    The input's rank: chunks of the input's fixed first dimension, 1 where symbolic. One more rank: `a[i]`.
    Rank 0 on either side, a first dimension fixed to 0, and any other rank: whole (`misfit` says what is wrong then).
    image: the array is an image, or images, to be prepared by a contract for an input of rank 4.
    """
    if not shape or dims == ():
        return WHOLE
    size = dims[0] if dims and isinstance(dims[0], int) and dims[0] else 1
    if image:
        return WHOLE if len(shape) == 3 else Cut(shape[0] // size, size, left=shape[0] % size)
    if dims is None:
        return Cut(shape[0])
    if len(shape) == len(dims) + 1:
        return Cut(shape[0], drop_axis=True)
    if len(shape) != len(dims) or dims[0] == 0:
        return WHOLE
    return Cut(shape[0] // size, size, left=shape[0] % size)


class NpzSource:
    """One file of arrays, one an input, cut in samples; rows are read when they are asked for.

    Raises DataError: DK301 names, DK302 damaged or hostile, DK303 no samples, DK307 labels, DK312 shapes.
    """

    def __init__(self, path: Path, wanted: Wanted, stored: Mapping[str, StoredArray] | None = None) -> None:
        """stored: the arrays, when the file is not an `.npz`."""
        arrays = dict(open_npz(path) if stored is None else stored)
        self.description = path.name
        self.findings: list[Finding] = []
        self._wanted = wanted
        label = wanted.label_name
        self._label = arrays.get(label) if label is not None else None
        self.labelled = self._label is not None
        names, said = match_names(arrays, wanted, path.name)
        self.findings += said
        self._arrays = {owner: arrays[name] for name, owner in names.items()}
        specs = {spec.name: spec for spec in wanted.inputs}
        cuts = {owner: self._cut(array, specs[owner]) for owner, array in self._arrays.items()}
        counts = {owner: cut.count for owner, cut in cuts.items() if cut.count is not None}
        if len(set(counts.values())) > 1 and 0 not in counts.values():
            self.findings.append(_one_feed(path.name, counts))
            cuts = dict.fromkeys(cuts, WHOLE)
            counts = {}
        self._cuts = cuts
        for owner, array in self._arrays.items():
            self._check(array, specs[owner])
        self.total: int = min(counts.values(), default=1)
        if self.total == 0:
            raise self._empty(specs)
        self._label_cut = self._cut_label(path) if self._label is not None else WHOLE

    def _image(self, array: StoredArray, spec: TensorSpec) -> bool:
        contract = self._wanted.contract
        return (
            contract is not None
            and array.dtype.name == "uint8"
            and spec.dtype != "uint8"
            and contract.prepares(spec.name)
            and len(array.shape) in {3, 4}
        )

    def _cut(self, array: StoredArray, spec: TensorSpec) -> Cut:
        return cut_of(array.shape, spec.shape, image=self._image(array, spec))

    def _check(self, array: StoredArray, spec: TensorSpec) -> None:
        """Refuses by the header what could not fit, before any value is read."""
        cut = self._cuts[spec.name]
        if spec.shape is None or self._image(array, spec) or array.shape == ():
            return
        shape = array.shape[1:] if cut.drop_axis else array.shape
        if cut.count is not None and not cut.drop_axis:
            shape = (cut.size, *array.shape[1:])
        hint = misfit(shape, spec)
        if cut.size > 1 and array.shape[0] < cut.size and fits(array.shape[1:], spec.shape[1:]):
            shape = array.shape
            hint = f"the input takes {cut.size} rows at a time: give at least as many"
        if hint is not None and not (array.shape == (1,) and spec.shape == ()):
            context = [f"array {array.name!r} of {self.description} is {array.dtype.name} {list(array.shape)}"]
            first = "sample 0" if cut.count is not None else "the array"
            where = f"{first} of {self.description}"
            raise wrong_shape(shape, spec, where, hint, context=context, file=array.path)
        if cut.left and cut.count:
            self.findings.append(
                warning(
                    "DK324",
                    f"{self.description}: the last {cut.left} of {array.shape[0]} rows of {array.name!r} do not fill "
                    f"the input's {cut.size} and are left out",
                    tensor=spec.name,
                    hint=f"give a multiple of {cut.size} rows, or export with a symbolic first dimension",
                )
            )

    def _empty(self, specs: Mapping[str, TensorSpec]) -> DataError:
        owner, array = next(
            (owner, array) for owner, array in self._arrays.items() if array.shape and not array.shape[0]
        )
        return DataError(
            f"{self.description} has no samples: array {array.name!r} has shape {array.shape}",
            code="DK303",
            tensor=owner,
            context=[f"expected {specs[owner].describe()}"],
            hint="axis 0 is the sample axis: give at least one row",
        )

    def _cut_label(self, path: Path) -> Cut:
        shape = () if self._label is None else self._label.shape
        size = next((cut.size for cut in self._cuts.values() if cut.count is not None), 1)
        if not shape or all(cut.count is None for cut in self._cuts.values()):
            return WHOLE
        if shape[0] == self.total:
            return Cut(self.total, drop_axis=True)
        left = next((cut.left for cut in self._cuts.values() if cut.count is not None), 0)
        if shape[0] in {self.total * size, self.total * size + left}:
            return Cut(self.total, size)
        raise DataError(
            f"{path.name} has {self.total} samples and {shape[0]} labels",
            code="DK307",
            file=path,
            context=[f"labels are array {self._wanted.label_name!r} of shape {shape}"],
            hint="give one label a sample, or name the right array with --label",
        )

    def read(self, keep: Sequence[int] | None) -> Iterator[Sample]:
        """Yields the samples, reading every array forward once."""
        indices = range(self.total) if keep is None else keep
        columns = {owner: _pieces(array, self._cuts[owner], indices) for owner, array in self._arrays.items()}
        labels: Iterator[Any] = itertools.repeat(None)
        if self._label is not None:
            labels = _pieces(self._label, self._label_cut, indices)
        for index in indices:
            feeds = {owner: next(column) for owner, column in columns.items()}
            label = next(labels)
            yield Sample(feeds, None if label is None else np.array(label)[()], f"sample {index}")


def _pieces(array: StoredArray, cut: Cut, indices: Sequence[int]) -> Iterator[Any]:
    if cut.count is None:
        return itertools.repeat(array.whole())
    pieces = array.rows([cut.rows(index) for index in indices])
    return (piece[0] for piece in pieces) if cut.drop_axis else pieces


def _one_feed(name: str, counts: Mapping[str, int]) -> Finding:
    said = ", ".join(f"{owner!r} {count}" for owner, count in counts.items())
    return note("DK313", f"{name}: the arrays hold different numbers of samples ({said}), so the file is one feed")


def npy_source(path: Path, wanted: Wanted) -> NpzSource:
    """The samples of a `.npy`, for a model with one input (carried inputs aside); DataError (DK301) otherwise."""
    if len(wanted.required) != 1:
        raise DataError(
            f"{path.name} holds one array, and the model takes {len(wanted.inputs)} inputs",
            code="DK301",
            file=path,
            context=["the inputs: " + ", ".join(repr(spec.name) for spec in wanted.inputs)],
            hint="give an .npz with one array an input: np.savez('data.npz', name=array)",
        )
    return NpzSource(path, wanted, {wanted.required[0]: open_npy(path)})
