"""Whether given tensors are what a model takes, said so that the sender can mend them."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from deploykit.serving.datatypes import DATATYPES, datatype_of
from deploykit.serving.errors import UnfitInputError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import numpy as np

    from deploykit.artifact import TensorSpec

    Array = np.ndarray[Any, Any]

# Of a name that is compared with others.
_LONGEST = 200


def describe(spec: TensorSpec) -> str:
    """As a client would write it: `FP32 [batch, 1, 8, 8]`."""
    shape = "of any shape" if spec.shape is None else f"[{', '.join(map(str, spec.shape))}]"
    return f"{DATATYPES.get(spec.dtype, spec.dtype)} {shape}"


def nearest(name: str, known: Collection[str]) -> list[str]:
    """The known name that was probably meant; none for a long one, which would be compared for minutes."""
    return difflib.get_close_matches(name, known, n=1) if len(name) <= _LONGEST else []


def unknown(kind: str, name: str, known: Collection[str]) -> UnfitInputError:
    """The error for an input or output that the model does not have, with the nearest one that it has."""
    near = nearest(name, known)
    listed = ", ".join(repr(item) for item in known)
    return UnfitInputError(
        f"the model has no {kind} {_cut(name)!r}; its {kind}s are {listed}",
        hint=f"did you mean {near[0]!r}?" if near else "",
    )


def _cut(name: str) -> str:
    return name if len(name) <= 80 else f"{name[:77]}..."


def check_names(given: Collection[str], inputs: Sequence[TensorSpec]) -> None:
    """Raises UnfitInputError when an input is unknown or missing."""
    known = [spec.name for spec in inputs]
    for name in given:
        if name not in known:
            raise unknown("input", name, known)
    missing = [f"{spec.name!r} ({describe(spec)})" for spec in inputs if spec.name not in given]
    if missing:
        raise UnfitInputError(f"the request lacks input {' and '.join(missing)}")


def check_datatype(datatype: str, spec: TensorSpec) -> None:
    """Raises UnfitInputError when the datatype is not the input's."""
    wanted = DATATYPES[spec.dtype]
    if datatype != wanted:
        known = datatype in DATATYPES.values()
        raise UnfitInputError(
            f"input {spec.name!r} is given as {_cut(datatype)!r}, and it takes {describe(spec)}",
            context=[] if known else [f"datatypes: {' '.join(DATATYPES.values())}"],
        )


def check_shape(shape: Sequence[int], spec: TensorSpec) -> None:
    """Raises UnfitInputError when rank or a fixed dimension differs; a symbol takes any size."""
    if spec.shape is None:
        return
    if len(shape) == len(spec.shape):
        for given, wanted in zip(shape, spec.shape, strict=True):
            if given != wanted and not isinstance(wanted, str):
                break
        else:
            return
    hint = ""
    if tuple(shape) == tuple(spec.shape[len(spec.shape) - len(shape) :]) and len(shape) < len(spec.shape):
        hint = f"add {len(spec.shape) - len(shape)} leading dimension(s) of 1"
    raise UnfitInputError(
        f"input {spec.name!r} has shape {list(shape)[:32]}, and the model takes {describe(spec)}", hint=hint
    )


def check_feeds(feeds: Mapping[str, Array], inputs: Sequence[TensorSpec]) -> None:
    """Raises UnfitInputError when names, datatypes or shapes are not the model's."""
    check_names(feeds, inputs)
    for spec in inputs:
        check_datatype(datatype_of(feeds[spec.name]), spec)
        check_shape(feeds[spec.name].shape, spec)


def differing_symbols(feeds: Mapping[str, Array], inputs: Sequence[TensorSpec]) -> list[str]:
    """Symbols that got several sizes, as sentences: most likely why an engine failed (some models allow it)."""
    sizes: dict[str, dict[str, int]] = {}
    for spec in inputs:
        for dimension, size in zip(spec.shape or (), feeds[spec.name].shape, strict=False):
            if isinstance(dimension, str):
                sizes.setdefault(dimension, {})[spec.name] = size
    return [
        f"dimension {symbol!r} is " + ", ".join(f"{size} in {name!r}" for name, size in found.items())
        for symbol, found in sizes.items()
        if len(set(found.values())) > 1
    ]
