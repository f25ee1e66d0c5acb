"""The feeds of a benchmark: the same for all artifacts, in batches, written once for every process to read."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.artifact import TensorSpec
from deploykit.data.samples import Sample
from deploykit.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    Array = np.ndarray[Any, Any]

MAX_BYTES = 256 * 2**20
MAX_BATCHES = 16
# Random data has one size for every dimension that varies, so that all calls cost the same.
_OPEN_SIZE = 8


def prepare_job(
    artifact: str, inputs: list[dict[str, Any]], data: dict[str, Any], batch: int, folder: str
) -> dict[str, Any]:
    """Writes the batches as `folder/<number>.npz`, in a worker: reading data may run a user's code.

    artifact: where the ONNX graph is read from that random integers obey. inputs: of all artifacts, TensorSpecs as
    JSON; empty: the artifact is opened to get them. data: a `DataRequest`. At most 16 batches or 256 MiB.
    Returns {"files", "batch": rows in a call, "description", "digest" (of the values), "findings"}.
    Raises DataError (DK444) when the batch cannot be made.
    """
    from deploykit.data import open_request

    specs = tuple(TensorSpec.from_dict(facts) for facts in inputs) or _inputs_of(Path(artifact))
    axes, rows = batch_axes(specs, batch)
    request = {**data, "purpose": "bench"}
    if _is_random(data["source"]):
        request |= {"dims": fixed_dims(specs, data.get("dims") or {}, axes, rows), "samples": MAX_BATCHES}
    elif request.get("samples") is None:
        request["samples"] = MAX_BATCHES * rows
    model = Path(artifact) if artifact.endswith(".onnx") else None
    dataset = open_request(request, specs, model=model)  # type: ignore[arg-type]
    files, digest = [], hashlib.sha256()
    try:
        for index, feeds in enumerate(_within_memory(batches(dataset, axes, rows))):
            path = Path(folder) / f"{index:04}.npz"
            arrays: dict[str, Any] = {name: _storable(array) for name, array in feeds.items()}
            np.savez(path, **arrays)
            _add(digest, arrays)
            files.append(str(path))
    except (MemoryError, DataError) as problem:
        if isinstance(problem, DataError) and problem.code != "DK334":
            raise
        text = f"a batch of {rows} does not fit into memory: {problem}"
        raise DataError(text, code="DK444", hint="choose a smaller --batch") from problem
    findings = [finding.as_dict() for finding in dataset.findings]
    return {
        "files": files,
        "batch": rows,
        "description": dataset.description,
        "digest": digest.hexdigest(),
        "findings": findings,
    }


def _add(digest: Any, arrays: Mapping[str, Array]) -> None:
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())


def read_feeds(files: Iterable[str]) -> list[Sample]:
    """The batches that `prepare_job` wrote."""
    found = []
    for file in files:
        with np.load(file, allow_pickle=False) as archive:
            found.append(Sample({name: archive[name] for name in archive.files}, None, Path(file).name))
    return found


def _storable(array: Array) -> Array:
    # Objects would need pickle; `comparison.Side` makes objects of text again.
    return array.astype(str) if array.dtype.kind == "O" else array


def _inputs_of(path: Path) -> tuple[TensorSpec, ...]:
    from deploykit.runtime import open_runtime

    runtime = open_runtime(path)
    try:
        return runtime.inputs
    finally:
        runtime.close()


def _is_random(source: str | None) -> bool:
    return source is None or source.partition(":")[0] == "random"


def batch_axes(inputs: Sequence[TensorSpec], batch: int) -> tuple[dict[str, int | None], int]:
    """By input the axis that is the batch (None: the same for every row), and how many rows a call has.

    The batch is the first symbolic leading dimension, wherever its symbol stands in other inputs (a recurrent state has
    it second); without a shared symbol, an input's leading or only symbolic dimension. A model whose leading dimensions
    are all fixed has that many rows.
    Raises DataError (DK444) when another batch is asked for than the model has fixed.
    """
    leading = [spec for spec in inputs if spec.shape is None or (spec.shape and isinstance(spec.shape[0], str))]
    if not leading:
        fixed = next((spec for spec in inputs if spec.shape), None)
        rows = int(fixed.shape[0]) if fixed is not None and fixed.shape else 1
        if batch not in (1, rows):
            name = fixed.name if fixed is not None else ""
            raise DataError(
                f"a batch of {batch} was asked for, and the model takes {rows} at a time (input {name!r})",
                code="DK444",
                tensor=name,
                hint="export it with a dynamic first dimension: --dim batch=1..64",
            )
        return dict.fromkeys((spec.name for spec in inputs), None), rows
    symbol = leading[0].shape[0] if leading[0].shape else None
    return {spec.name: _axis(spec, symbol) for spec in inputs}, batch


def _axis(spec: TensorSpec, symbol: int | str | None) -> int | None:
    if spec.shape is None:
        return 0
    symbolic = [axis for axis, size in enumerate(spec.shape) if isinstance(size, str)]
    if symbol in spec.shape:
        return spec.shape.index(symbol) if symbol is not None else None
    if symbolic and (symbolic[0] == 0 or len(symbolic) == 1):
        return symbolic[0]
    return None


def fixed_dims(
    inputs: Sequence[TensorSpec], dims: Mapping[str, Sequence[int | None]], axes: Mapping[str, int | None], rows: int
) -> dict[str, list[int | None]]:
    """Every symbolic dimension at one size: the batch, or the declared maximum, or 8 (its minimum when larger)."""
    sizes: dict[str, list[int | None]] = {}
    for spec in inputs:
        for axis, name in enumerate(spec.shape or ()):
            if not isinstance(name, str) or name in sizes:
                continue
            low, high, *_ = dims.get(name, (1, None))
            size = rows if axis == axes[spec.name] else high or max(low or 1, _OPEN_SIZE)
            sizes[name] = [size, size]
    return sizes


def batches(samples: Iterable[Sample], axes: Mapping[str, int | None], rows: int) -> Iterator[dict[str, Array]]:
    """Feeds of `rows` rows each: samples of the same shapes are put together along the batch axes.

    Samples are taken again from the start of their group when too few of a shape are there to fill one batch.
    Raises DataError (DK303) without samples.
    """
    groups: dict[tuple[Any, ...], list[dict[str, Array]]] = {}
    made = 0
    for sample in samples:
        have = _rows_of(sample.feeds, axes)
        if have is None or have >= rows:
            yield _cut(sample.feeds, axes, rows)
            made += 1
            continue
        group = groups.setdefault(_shapes_beside(sample.feeds, axes), [])
        group.append(sample.feeds)
        if sum(_rows_of(feeds, axes) or 0 for feeds in group) >= rows:
            yield _joined(group, axes, rows)
            group.clear()
            made += 1
    left = max(groups.values(), key=len, default=[])
    if not made and not left:
        raise DataError("the benchmark's data gives no samples", code="DK303")
    if not made:
        repeated = itertools.islice(itertools.cycle(left), rows)
        yield _joined(list(repeated), axes, rows)


def _rows_of(feeds: Mapping[str, Array], axes: Mapping[str, int | None]) -> int | None:
    """Rows of a feed by its first input with a batch axis; None when no input has one."""
    found = ((array, axes.get(name)) for name, array in feeds.items())
    return next((int(array.shape[axis]) for array, axis in found if axis is not None), None)


def _shapes_beside(feeds: Mapping[str, Array], axes: Mapping[str, int | None]) -> tuple[Any, ...]:
    """What must be equal for two feeds to be joined."""
    return tuple(
        (name, tuple(size for at, size in enumerate(array.shape) if at != axes.get(name)))
        for name, array in sorted(feeds.items())
    )


def _joined(group: Sequence[Mapping[str, Array]], axes: Mapping[str, int | None], rows: int) -> dict[str, Array]:
    together = {
        name: array if axes.get(name) is None else np.concatenate([feeds[name] for feeds in group], axis=axes[name])
        for name, array in group[0].items()
    }
    return _cut(together, axes, rows)


def _cut(feeds: Mapping[str, Array], axes: Mapping[str, int | None], rows: int) -> dict[str, Array]:
    return {
        name: array if (axis := axes.get(name)) is None else np.take(array, range(rows), axis=axis)
        for name, array in feeds.items()
    }


def _within_memory(feeds: Iterable[dict[str, Array]]) -> Iterator[dict[str, Array]]:
    used = 0
    for index, feed in enumerate(feeds):
        used += sum(array.nbytes for array in feed.values())
        if index == MAX_BATCHES or (index and used > MAX_BYTES):
            return
        yield feed
