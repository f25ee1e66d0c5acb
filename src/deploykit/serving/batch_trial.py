"""Whether a model's requests may be computed together, found by trying it when the model is loaded."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import numpy as np

from deploykit.serving.batching import BatchPolicy, joined
from deploykit.serving.model_config import batch_symbol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from deploykit.runtime import Feeds, Runtime

    Array = np.ndarray[Any, Any]

# What `auto` allows in one call, and the rows on which it looks whether that pays.
AUTO_ROWS = 32
_TRIED_ROWS = 8
# Of the time that the rows take one by one; above, waiting for the whole call costs more than the call saves.
_WORTH = 0.8
# Requests that are tried beside the first one at least, and the seconds after which it is no more.
_LEAST_TRIED, _TRIAL_SECONDS = 2, 2.0
# A row computed beside others may be summed in another order; what depends on them differs by more.
_RELATIVE, _OF_LARGEST = 1e-3, 1e-4


def batched_inputs(runtime: Runtime) -> tuple[str, ...]:
    """The inputs whose first dimension is the batch: all of them, or none where tensors disagree about it."""
    if batch_symbol([*runtime.inputs, *runtime.outputs]) is None:
        return ()
    return tuple(spec.name for spec in runtime.inputs)


def why_not_together(runtime: Runtime, first: Feeds, second: Feeds) -> str | None:
    """Why two requests must not share a call, by comparing both ways; None when they may.

    A model whose result for a row depends on the other rows (a mean over the batch, scales measured on the whole
    input) would answer one client by another's data. Raises what the engine raises.
    """
    apart = [runtime.predict(first), runtime.predict(second)]
    both = runtime.predict(joined([first, second]))
    for name, array in both.items():
        expected = [part[name] for part in apart]
        if any(not part.ndim for part in expected) or array.shape[0] != sum(part.shape[0] for part in expected):
            return f"output {name!r} has shape {list(array.shape)} for the rows of two requests"
        # Each by its own size: beside large values a small row that is lost would look like rounding.
        rows = expected[0].shape[0]
        if not all(map(_equal, (array[:rows], array[rows:]), expected)):
            return f"output {name!r} of a row depends on the rows beside it"
    return None


def _equal(made: Array, expected: Array) -> bool:
    if made.shape != expected.shape:
        return False
    if made.dtype.kind != "f":
        return bool(np.array_equal(made, expected))
    largest = float(np.max(np.abs(expected), where=np.isfinite(expected), initial=0.0))
    return bool(np.allclose(made, expected, rtol=_RELATIVE, atol=_OF_LARGEST * largest, equal_nan=True))


def policy_for(
    runtime: Runtime, feeds: Feeds, asked: BatchPolicy | None, others: Sequence[Feeds] = ()
) -> tuple[BatchPolicy, str | None]:
    """The policy for a model, and why it is not what was asked for or what would be usual.

    feeds: of one request. asked: None chooses: batches where a call of several rows takes clearly less than its rows
    one by one. others: more requests of the same shapes to try beside it.
    """
    if asked is not None and asked.max_rows <= 1:
        return asked, None
    if not batched_inputs(runtime):
        why = "its inputs and outputs do not all begin with the same symbolic dimension"
        return BatchPolicy(), why
    problem = _tried(runtime, feeds, others)
    if problem is not None:
        return BatchPolicy(), problem
    if asked is not None:
        return asked, None
    share = _share(runtime, feeds)
    if share > _WORTH:
        return BatchPolicy(), f"{_TRIED_ROWS} rows take {share:.2f} of their time one by one, so batches gain nothing"
    return BatchPolicy(max_rows=AUTO_ROWS), None


def _tried(runtime: Runtime, feeds: Feeds, others: Sequence[Feeds]) -> str | None:
    """Why a request must not share a call with one of several others, of other values: equal rows would hide mix-ups.

    Token ids and pixels in another order have the same range, so that only other ids and pixels show a scale that is
    measured over all rows.
    """
    seconds: list[Feeds] = [{name: _moved(array) for name, array in feeds.items()}]
    if any(array.dtype.kind in "iu" for array in feeds.values()):
        seconds.append({name: _smaller(array) for name, array in feeds.items()})
    seconds += others
    started, tried = time.perf_counter(), 0
    for second in seconds:
        if tried >= _LEAST_TRIED and time.perf_counter() - started > _TRIAL_SECONDS:
            break
        try:
            runtime.predict(second)
        except Exception as refused:  # vendors' own classes; made values need not be valid for every model
            problem: str | None = f"two requests in one call fail: {refused}"
            continue
        tried += 1
        try:
            problem = why_not_together(runtime, feeds, second)
        except Exception as refused:  # vendors' own classes
            problem = f"two requests in one call fail: {refused}"
        if problem is not None:
            return problem
    return None if tried else problem


def _moved(array: Array) -> Array:
    """Other values of the same kind: the rows' elements in reverse order, and floats three times as large.

    The order shows rows that are mixed up, the size shows scales that are measured over all rows.
    """
    turned = array.reshape(array.shape[0], -1)[:, ::-1].reshape(array.shape)
    return np.ascontiguousarray(turned * turned.dtype.type(3) if turned.dtype.kind == "f" else turned)


def _smaller(array: Array) -> Array:
    """Whole numbers nearer to zero, which a vocabulary that has the given ones has, too; the rest as it is."""
    return array // array.dtype.type(3) if array.dtype.kind in "iu" else array


def _share(runtime: Runtime, feeds: Feeds) -> float:
    """The time of one call with several rows, over that of as many calls."""
    several = joined([feeds] * _TRIED_ROWS)

    def seconds(given: Feeds) -> float:
        started = time.perf_counter()
        runtime.predict(given)
        return time.perf_counter() - started

    seconds(several)  # the first call of a shape allocates
    pairs = [(seconds(feeds), seconds(several)) for _ in range(3)]
    return statistics.median(many / max(one, 1e-9) for one, many in pairs) / _TRIED_ROWS
