"""Which tensor of a converted file holds the values of which tensor of the ONNX model: found by running both once.

Converters rename tensors, move channels and fuse operators, so names tell little. Equal values on random inputs do.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.converters.litert.interface import AXES
from deploykit.converters.litert.taps import LiteRtTaps
from deploykit.data.request import data_request, open_request
from deploykit.errors import DeploykitError
from deploykit.runtime import RuntimeOptions
from deploykit.taps import open_taps

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from deploykit.artifact import TensorSpec
    from deploykit.taps import Taps

    Array = np.ndarray[Any, np.dtype[Any]]

_TOGETHER = 64  # tensors in one run
_MOST_BYTES = 256 << 20  # of values held on each side; tensors beyond are not named
_FEWEST = 4  # elements of a tensor that can be told from others
_RTOL, _ATOL = 1e-3, 1e-4  # of the largest value
_SIZES = (None, 64, 320, 16, 2)  # of open dimensions, tried in turn


def traced(
    model: Path, content: bytes, name: str, inputs: Sequence[TensorSpec], dims: Mapping[str, Sequence[int | None]]
) -> dict[str, str]:
    """The name of the file's tensor, with the axes that bring it into the model's order, by ONNX tensor.

    content: of a float file made of `model`. inputs: the model's, with the sizes that are fixed in the file.
    Empty where the model takes none of the inputs that were tried.
    """
    ours: Taps = open_taps(model, RuntimeOptions(optimize=False))
    theirs = LiteRtTaps(content, name, RuntimeOptions())
    for size in _SIZES:
        try:
            feeds = _feeds(model, inputs, dims, size)
            reference = _values(ours, feeds)
            return _matched(reference, _values(theirs, feeds))
        except (DeploykitError, ValueError, RuntimeError):  # an engine that does not take these sizes
            continue
    return {}


def _feeds(
    model: Path, inputs: Sequence[TensorSpec], dims: Mapping[str, Sequence[int | None]], size: int | None
) -> dict[str, Array]:
    symbols = {axis for spec in inputs for axis in spec.shape or () if isinstance(axis, str)}
    bounds = {name: list(given) for name, given in dims.items() if name in symbols}
    if size is not None:
        bounds |= {name: [size, size] for name in symbols - set(bounds)}
        # A first axis is mostly a batch: hundreds of pictures fill the memory.
        firsts = {spec.shape[0] for spec in inputs if spec.shape and len(spec.shape) > 1}
        bounds |= {name: [min(size, 2)] * 2 for name in symbols & firsts - set(dims)}
    request = data_request("random:0", "parity", samples=1, dims=bounds)
    (sample,) = open_request(request, tuple(inputs), model)  # type: ignore[arg-type]  # a DataRequest, as JSON
    return dict(sample.feeds)


def _values(taps: Taps, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The float tensors that can be told apart, by name, in order."""
    found: dict[str, Array] = {}
    held = 0
    for names in _batches(taps):
        for name, array in taps.read(feeds, list(names)).items():
            if array.dtype.kind != "f" or array.size < _FEWEST or not np.isfinite(array).all():
                continue
            if array.max() > array.min() and held + array.nbytes <= _MOST_BYTES:
                found[name] = array.astype(np.float32)
                held += array.nbytes
    return found


def _batches(taps: Taps) -> Iterator[tuple[str, ...]]:
    names = iter(taps.tensors)
    while batch := tuple(itertools.islice(names, _TOGETHER)):
        yield batch


def _matched(reference: Mapping[str, Array], candidate: Mapping[str, Array]) -> dict[str, str]:
    by_size: dict[int, list[tuple[str, Array]]] = defaultdict(list)
    for name, array in candidate.items():
        by_size[array.size].append((name, array))
    found = {}
    for name, array in reference.items():
        for own, other in by_size[array.size]:
            order = _order(array, other)
            if order is not None:
                found[name] = own if not order else f"{own}{AXES}{','.join(map(str, order))}"
                break
    return found


def _order(wanted: Array, found: Array) -> tuple[int, ...] | None:
    """The axes by which the second becomes the first, () for none; None where nothing does."""
    limit = _ATOL * float(np.abs(wanted).max())
    if abs(float(wanted.max()) - float(found.max())) > limit * 10:
        return None
    alike = [size for size in wanted.shape if size != 1] == [size for size in found.shape if size != 1]
    if alike and np.allclose(wanted.ravel(), found.ravel(), rtol=_RTOL, atol=limit):
        return ()
    if wanted.ndim != found.ndim or wanted.ndim > 5:
        return None
    for order in itertools.permutations(range(found.ndim)):
        moved = found.transpose(order)
        if moved.shape == wanted.shape and np.allclose(wanted, moved, rtol=_RTOL, atol=limit):
            return order
    return None
