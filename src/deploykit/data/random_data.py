"""Random samples: seeded, within the declared ranges of every dimension, valid for what the graph does with them."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.data.dtypes import numpy_dtype
from deploykit.data.fitting import is_symbol
from deploykit.data.random_pictures import picture_inputs, random_picture
from deploykit.data.samples import Sample
from deploykit.errors import DataError
from deploykit.report import Finding, note

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from deploykit.artifact import TensorSpec
    from deploykit.data.samples import Wanted
    from deploykit.data.specs import DimRange
    from deploykit.data.vocabulary import Values

Array = np.ndarray[Any, Any]
DEFAULT_SAMPLES = 16
OPEN_SPAN = 7  # an unbounded dimension goes from its minimum (1 when undeclared) to seven above it: 1..8
_WORDS = ("", "a", "deploy", "the quick brown fox", "naïve", "日本語", "0.5", "N/A")


class RandomSource:
    """Seeded random feeds; sample i is the same whatever was read before it.

    Shapes: every symbol takes its minimum in sample 0, its maximum in sample 1 and values between in the others,
    those of sets all their combinations in turn;
    inputs that share a symbol share its value; a fixed dimension stays, 0 too. Floats are standard normal; inputs with
    a preprocessing contract get random pixels through it.
    Integers stay within what the graph takes (`vocabulary.integer_values`); 0 and 1 where it does not tell.
    """

    def __init__(self, wanted: Wanted, seed: int) -> None:
        """seed: what `random:SEED` says."""
        self.description = f"random:{seed}"
        self.total: int = DEFAULT_SAMPLES if wanted.samples is None else wanted.samples
        self.labelled = False
        self.findings: list[Finding] = []
        self._wanted = wanted
        self._seed = seed
        self._values: Mapping[str, Values] = {}
        integers = [spec.name for spec in wanted.inputs if numpy_dtype(spec.dtype).kind in "iu"]
        if integers and wanted.model is not None:
            from deploykit.data.vocabulary import integer_values

            self._values = integer_values(wanted.model, tuple(integers))
            self.findings += [
                note("DK331", f"random:{seed}: integers for input {name!r} are {values.describe()}", tensor=name)
                for name, values in self._values.items()
            ]
        self._pictures = picture_inputs(wanted)
        self.findings += [
            note("DK553", f"random:{seed}: input {name!r} gets random pixels through its preprocessing", tensor=name)
            for name in self._pictures
        ]
        for spec in wanted.inputs:
            if spec.shape is None:
                raise DataError(
                    f"input {spec.name!r} has no declared rank, so no random data can be made for it",
                    code="DK330",
                    tensor=spec.name,
                    hint=f"give data, or declare it: --input '{spec.name}:{spec.dtype}[...]'",
                )

        self._say_undeclared()

    def _say_undeclared(self) -> None:
        symbols = {dim for spec in self._wanted.inputs for dim in spec.shape or () if isinstance(dim, str)}
        undeclared = sorted(symbols - set(self._wanted.dims) - _sums(self._wanted.inputs))
        if undeclared:
            names = ", ".join(repr(name) for name in undeclared)
            low, high = bounds(undeclared[0], {})
            self.findings.append(
                note(
                    "DK333",
                    f"{self.description}: no range is declared for dimension {names}: sizes are {low}..{high}",
                    hint=f"--dim {undeclared[0]}=MIN..MAX",
                )
            )

    def read(self, keep: Sequence[int] | None) -> Iterator[Sample]:
        """Yields the samples; DataError (DK334) for one that does not fit into memory."""
        for index in range(self.total) if keep is None else keep:
            generator = np.random.default_rng([self._seed, index])
            sizes = sample_sizes(self._wanted.inputs, self._wanted.dims, index, generator)
            feeds = {spec.name: self._made(spec, sizes[spec.name], generator) for spec in self._wanted.inputs}
            yield Sample(feeds, None, f"sample {index}")

    def _made(self, spec: TensorSpec, shape: tuple[int, ...], generator: np.random.Generator) -> Array:
        # numpy's limit is on bytes; computed values are of 8 bytes before they get their dtype.
        if math.prod(shape) <= np.iinfo(np.intp).max // 16:
            with contextlib.suppress(MemoryError):
                return self._array(spec, shape, generator)
        raise DataError(
            f"random data for input {spec.name!r} does not fit into memory: its shape is {list(shape)}",
            code="DK334",
            tensor=spec.name,
            hint="--dim NAME=MIN..MAX with smaller bounds; a fixed size is the model's own",
        )

    def _array(self, spec: TensorSpec, shape: tuple[int, ...], generator: np.random.Generator) -> Array:
        if spec.dtype == "string":
            return generator.choice(np.array(_WORDS, object), shape)
        dtype = numpy_dtype(spec.dtype)
        if spec.name in self._pictures:
            return random_picture(self._pictures[spec.name], spec, shape, generator)
        if dtype.kind == "b":
            return generator.integers(0, 2, shape).astype(bool)
        if dtype.kind in "iu":
            return _integers(self._values.get(spec.name), dtype, shape, generator)
        if dtype.kind == "c":
            return (generator.standard_normal(shape) + 1j * generator.standard_normal(shape)).astype(dtype)
        return np.asarray(generator.standard_normal(shape)).astype(dtype)


def _integers(
    values: Values | None, dtype: np.dtype[Any], shape: tuple[int, ...], generator: np.random.Generator
) -> Array:
    if values is not None and values.choices:
        return np.asarray(generator.choice(np.array(values.choices, dtype), shape))
    low, high = (0, 1) if values is None else (values.low, values.high)
    array = np.asarray(generator.integers(low, high, shape, dtype=np.int64, endpoint=True)).astype(dtype)
    if high == 1 and low == 0 and array.ndim and array.size:
        # A mask of zeros only would divide by zero in an attention's softmax.
        array[..., 0] = 1
    return array


def sample_sizes(
    inputs: Sequence[TensorSpec], dims: Mapping[str, DimRange], index: int, generator: np.random.Generator
) -> dict[str, tuple[int, ...]]:
    """The shapes of sample `index` by input name: its symbols at their minimum (0), maximum (1) or between.

    A sum of other inputs' symbols, `past_sequence_length + sequence_length`, has their sizes' sum.
    """
    sums = _sums(inputs)
    bound: dict[str, int] = {}
    chosen = _combination(inputs, dims, index)

    def size(dim: int | str) -> int:
        if isinstance(dim, int):
            return dim
        if is_symbol(dim) and dim in bound:
            return bound[dim]
        if dim in sums:
            return sum(int(part) if part.isdigit() else size(part) for part in dim.split(" + "))
        if dim in chosen:
            return chosen[dim]
        low, high = bounds(dim, dims)
        between = int(generator.integers(low, high, endpoint=True))
        value = low if index == 0 else high if index == 1 else between
        if is_symbol(dim):
            bound[dim] = value
        return value

    return {spec.name: tuple(size(dim) for dim in spec.shape or ()) for spec in inputs}


def _combination(inputs: Sequence[TensorSpec], dims: Mapping[str, DimRange], index: int) -> dict[str, int]:
    """A size for each symbol that has a set of them: all combinations in turn, the smallest first, the largest next."""
    names = dict.fromkeys(dim for spec in inputs for dim in spec.shape or () if isinstance(dim, str))
    sets = {name: sorted(dims[name].sizes) for name in names if name in dims and dims[name].sizes}
    count = math.prod(map(len, sets.values()))
    turn = index % count
    place = 0 if turn == 0 else count - 1 if turn == 1 else turn - 1
    found = {}
    for name, sizes in sets.items():
        place, digit = divmod(place, len(sizes))
        found[name] = sizes[digit]
    return found


def _sums(inputs: Sequence[TensorSpec]) -> set[str]:
    """Dimensions that are sums of numbers and of symbols that inputs have, and so nothing to choose."""
    symbols = {dim for spec in inputs for dim in spec.shape or () if isinstance(dim, str)}
    return {
        dim for dim in symbols if " + " in dim and all(part.isdigit() or part in symbols for part in dim.split(" + "))
    }


def bounds(dim: str, dims: Mapping[str, DimRange]) -> tuple[int, int]:
    """Smallest and largest size that random data gives a symbolic dimension; 1..8 when nothing is declared."""
    declared = dims.get(dim)
    if declared is None:
        return 1, 1 + OPEN_SPAN
    return declared.minimum, declared.minimum + OPEN_SPAN if declared.maximum is None else declared.maximum
