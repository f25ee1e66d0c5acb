"""Calibration: runs the float model over the data once and looks at its tensors; nothing else is kept.

What is remembered serves every method, so that another one costs no second run. Looking is shared among threads: numpy
lets others run while it reads.
"""

from __future__ import annotations

import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.data import CarriedState
from deploykit.errors import DataError
from deploykit.progress import OnProgress, Progress, silent
from deploykit.quantize.observers import HistogramObserver, Look, RangeObserver, finished, look, quota
from deploykit.quantize.ranges import TensorRange
from deploykit.quantize.resume import Saved
from deploykit.quantize.taps import run_tapped, tapped_session
from deploykit.quantize.thresholds import Interval, Method, choose_interval

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import onnxruntime as ort

    from deploykit.data import Sample
    from deploykit.quantize.observers import Extremes, Histogram
    from deploykit.quantize.resume import Keeper

__all__ = ["Calibration", "tapped_session"]

Array = np.ndarray[Any, Any]
TYPICAL = 0.99
# Elements wait until so many bytes are there, so that counting them costs few calls.
BUFFER = 8 << 20
# Below this many bytes of tensors, handing work to threads costs more than it saves.
WORTH_THREADS = 1 << 20
THREADS = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 8)


class Calibration:
    """Streams samples through a tapped session once, and hands each tensor to its observers."""

    def __init__(
        self,
        session: ort.InferenceSession,
        names: Sequence[str],
        samples: Callable[[], Iterable[Sample]],
        *,
        total: int | None,
        carry: Mapping[str, str],
        on_progress: OnProgress = silent,
        sources: Mapping[str, str] | None = None,
        histograms: bool = True,
        keeper: Keeper | None = None,
    ) -> None:
        """samples: a function that gives the samples. total: how many, where known.

        sources: for each name, the output or input of the session that has its values, where that is another one.
        histograms: without them there are extremes only. keeper: saves what was seen now and then, and has what an
        interrupted run saw.
        """
        self._session = session
        self._names = list(names)
        self._samples = samples
        self._total = total
        self._carry = dict(carry)
        self._on_progress = on_progress
        self._keeper = keeper
        self._source = {name: (sources or {}).get(name, name) for name in self._names}
        self._sources = list(dict.fromkeys(self._source.values()))
        self._ranges = RangeObserver(len(self._sources))
        self._histograms = [HistogramObserver() for _ in self._sources] if histograms else []
        self._waiting: list[list[Array]] = [[] for _ in self._sources]
        self._bytes = 0
        self._quota = quota(total) if histograms else 0
        self._prints: list[int] = []
        self._carried: dict[str, Array] = {}
        self.count = 0
        self.zeros = 0
        self.resumed = 0

    def run(self, method: Method) -> dict[str, TensorRange]:
        """Runs over the data and gives the ranges of all tensors by `method`.

        Raises DataError (DK363) when there is no sample, DK364 when there are fewer than an interrupted run has seen,
        DK378 when the model refuses a sample.
        """
        self.collect()
        return self.ranges(method)

    @property
    def repeated(self) -> int:
        """Samples that are equal to one before them."""
        return len(self._prints) - len(set(self._prints))

    def collect(self) -> None:
        """Runs the model over the data, or over what an interrupted run left of it."""
        state = CarriedState(self._carry)
        saved = self._keeper.load(self._sources) if self._keeper is not None else None
        if saved is not None:
            self._restore(saved, state)
        half = None if self._total is None else self._total / 2
        wanted = self._wanted()
        seen = 0
        with ThreadPoolExecutor(THREADS) as pool:
            for sample in self._samples():
                seen += 1
                if seen <= self.resumed:
                    continue
                feeds = state.fill(sample.feeds)
                values = run_tapped(self._session, feeds, wanted, sample.name)
                state.update(values)
                self._carried = {name: values[name] for name in self._carry.values()}
                self._about_sample(sample.feeds)
                self._look({**values, **feeds}, pool, second_half=half is not None and self.count >= half)
                self.count += 1
                self._on_progress(Progress("calibrating", sample.name, self.count, self._total))
                del values
                if self._keeper is not None and self._keeper.due():
                    self._flush()
                    self._keeper.save(self._saved())
        self._flush()
        if seen < self.resumed:
            raise DataError(
                f"the calibration data gave {self.resumed} samples before it was interrupted and {seen} now",
                code="DK364",
                hint="the callable must yield the same samples on each call; delete the file at --ranges to start anew",
            )
        if self.count == 0:
            raise DataError(
                "the calibration data has no sample",
                code="DK363",
                hint="give --calib a file or folder with at least one sample, better some hundred",
            )

    def ranges(self, method: Method) -> dict[str, TensorRange]:
        """The ranges of all tensors by `method`, from what was seen."""
        found = {}
        for index, source in enumerate(self._sources):
            extremes = self._ranges.of(index)
            histogram = None
            if self._histograms and extremes.fired and not extremes.constant:
                histogram = finished(self._histograms[index], extremes)
            found[source] = _tensor_range(extremes, histogram, method)
        return {name: found[self._source[name]] for name in self._names}

    def _wanted(self) -> list[str]:
        """Outputs to ask for: what is looked at and is not fed, and what is carried."""
        known = {output.name for output in self._session.get_outputs()}
        fed = {value.name for value in self._session.get_inputs()}
        looked_at = (name for name in self._sources if name not in fed)
        return list(dict.fromkeys([*looked_at, *(name for name in self._carry.values() if name in known)]))

    def _look(self, values: Mapping[str, Array], pool: ThreadPoolExecutor, *, second_half: bool) -> None:
        """Extremes and elements of every tensor; large ones first, so that the threads end together."""
        arrays = [values[name] for name in self._sources]
        looks: list[Look | None] = [None] * len(arrays)
        turn = self.count

        def work(indices: list[int]) -> None:
            for index in indices:
                looks[index] = look(arrays[index], self._quota, turn)

        order = sorted(range(len(arrays)), key=lambda index: -arrays[index].size)
        if sum(array.nbytes for array in arrays) < WORTH_THREADS:
            work(order)
        else:
            list(pool.map(work, (order[first::THREADS] for first in range(THREADS))))
        done = [found for found in looks if found is not None]
        self._ranges.observe(done, second_half=second_half)
        if not self._histograms:
            return
        for waiting, found in zip(self._waiting, done, strict=True):
            waiting.append(found.elements)
            self._bytes += found.elements.nbytes
        if self._bytes > BUFFER:
            self._flush(pool)

    def _flush(self, pool: ThreadPoolExecutor | None = None) -> None:
        """Counts the elements that wait. When this happens changes nothing: bins are merged exactly."""
        if not self._bytes:
            return
        largest = np.maximum(np.abs(self._ranges.minimum), np.abs(self._ranges.maximum))

        def work(indices: range) -> None:
            for index in indices:
                waiting, histogram = self._waiting[index], self._histograms[index]
                elements = np.concatenate(waiting) if waiting else np.empty(0, np.float32)
                if elements.size:
                    histogram.widen(float(largest[index]))
                    histogram.observe(elements)
                waiting.clear()

        count = len(self._sources)
        if pool is None:
            work(range(count))
        else:
            list(pool.map(work, (range(first, count, THREADS) for first in range(THREADS))))
        self._bytes = 0

    def _about_sample(self, feeds: Mapping[str, Array]) -> None:
        """Notes what shows a degenerate sample: a checksum to find it again, and whether its numbers are all 0."""
        given = {name: array for name, array in sorted(feeds.items()) if name not in self._carry}
        if any(array.dtype.kind not in "fiub" for array in given.values()):
            return
        checksum = 0
        for name, array in given.items():
            checksum = zlib.crc32(f"{name}{array.shape}".encode(), checksum)
            checksum = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, checksum)
        self._prints.append(checksum)
        numbers = [array for array in given.values() if array.dtype.kind == "f" and array.size]
        self.zeros += bool(numbers) and not any(array.any() for array in numbers)

    def _saved(self) -> Saved:
        return Saved(
            samples=self.count,
            zeros=self.zeros,
            prints=self._prints,
            ranges=self._ranges,
            histograms=self._histograms,
            state=self._carried,
        )

    def _restore(self, saved: Saved, state: CarriedState) -> None:
        self.count = self.resumed = saved.samples
        self.zeros, self._prints = saved.zeros, saved.prints
        self._ranges, self._histograms = saved.ranges, saved.histograms
        if saved.state:
            state.update(saved.state)


def _tensor_range(extremes: Extremes, histogram: Histogram | None, method: Method) -> TensorRange:
    if not extremes.fired:
        return TensorRange(0.0, 0.0, 0, not_finite=extremes.not_finite)
    low, high = extremes.minimum, extremes.maximum
    forms = {}
    for form, symmetric in (("affine", False), ("symmetric", True)):
        if histogram is None:
            forms[form] = Interval(low, high).shaped(symmetric=symmetric)
        else:
            average = Interval(extremes.mean_minimum, extremes.mean_maximum)
            forms[form] = choose_interval(histogram, method, symmetric=symmetric, average=average)
    return TensorRange(
        low,
        high,
        extremes.samples,
        growth=round(extremes.growth, 6),
        not_finite=extremes.not_finite,
        typical=max(abs(low), abs(high)) if histogram is None else _typical(histogram),
        **forms,
    )


def _typical(histogram: Histogram) -> float:
    magnitude = np.abs(histogram.centers)
    order = np.argsort(magnitude, kind="stable")
    kept = np.cumsum(histogram.counts[order])
    return float(magnitude[order][min(np.searchsorted(kept, TYPICAL * kept[-1]), order.size - 1)])
