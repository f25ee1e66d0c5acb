"""Calibration: runs the float model over the data and lets observers see the tensors; nothing else is kept."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort

from deploykit import graph, io
from deploykit.data import CarriedState
from deploykit.errors import DataError, GateError
from deploykit.progress import OnProgress, Progress, silent
from deploykit.quantize.observers import HistogramObserver, RangeObserver, new_histograms, new_observers
from deploykit.quantize.ranges import TensorRange
from deploykit.quantize.thresholds import Interval, Method, choose_interval

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import onnx_ir as ir

    from deploykit.data import Sample

Array = np.ndarray[Any, Any]
TYPICAL = 0.99


def float_session(path: Path, *, optimize: bool = False) -> ort.InferenceSession:
    """An onnxruntime CPU session that keeps no memory from call to call; graph optimisation off unless asked for."""
    options = ort.SessionOptions()
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    # The arena and the memory pattern keep the largest sample's buffers for ever, and lengths differ.
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    options.log_severity_level = 3
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


@contextlib.contextmanager
def tapped_session(model: ir.Model, names: Sequence[str]) -> Iterator[ort.InferenceSession]:
    """A session of the model with the named tensors as further outputs; the model itself is as before afterwards.

    Raises GateError (DK201) when onnxruntime does not take the model.
    """
    outputs = model.graph.outputs
    known = {value.name for value in (*outputs, *model.graph.inputs)}
    values = {value.name: value for node in model.graph for value in node.outputs}
    extra = [values[name] for name in names if name not in known]
    with io.scratch_folder() as folder:
        from pathlib import Path

        path = Path(folder) / "tapped.onnx"
        before = len(outputs)
        outputs.extend(extra)
        try:
            graph.save(model, path)
        finally:
            while len(outputs) > before:
                outputs.pop()
        try:
            session = float_session(path)
        except Exception as problem:
            if not _is_onnxruntime(problem):
                raise
            told = _reason(problem).rpartition(f"{path} failed:")[2]
            raise GateError(
                f"ONNX Runtime {ort.__version__} does not load the model, so it cannot be calibrated: {told}",
                code="DK201",
                target="onnxruntime",
                hint="deploykit check MODEL --target onnxruntime names every node that it refuses",
            ) from problem
        yield session


class Calibration:
    """Streams samples through a tapped session, once or twice, and hands each tensor to its observer."""

    def __init__(
        self,
        session: ort.InferenceSession,
        names: Sequence[str],
        samples: Callable[[], Iterable[Sample]],
        *,
        total: int | None,
        carry: Mapping[str, str],
        on_progress: OnProgress = silent,
    ) -> None:
        """samples: a function that gives the samples from the start each time. total: how many, where known."""
        self._session = session
        self._names = list(names)
        self._samples = samples
        self._total = total
        self._carry = dict(carry)
        self._on_progress = on_progress
        self._outputs = [output.name for output in session.get_outputs()]
        self.count = 0

    def run(self, method: Method) -> dict[str, TensorRange]:
        """The ranges of all tensors by `method`; one pass for minmax, two (extremes, then histograms) otherwise.

        Raises DataError (DK363) when there is no sample, DK364 when the second pass gives other samples than the first,
        DK378 when the model refuses a sample.
        """
        passes = 1 if method == "minmax" else 2
        ranges = new_observers(self._names)
        self.count = self._pass(ranges, 0, passes)
        if self.count == 0:
            raise DataError(
                "the calibration data has no sample",
                code="DK363",
                hint="give --calib a file or folder with at least one sample, better some hundred",
            )
        histograms: dict[str, HistogramObserver] = {}
        if passes == 2:
            histograms = new_histograms(ranges)
            again = self._pass(histograms, 1, passes)
            if again != self.count:
                raise DataError(
                    f"the calibration data gave {self.count} samples the first time and {again} the second",
                    code="DK364",
                    hint="the callable must yield the same samples on each call; --method minmax reads once",
                )
        return {name: _tensor_range(observed, histograms.get(name), method) for name, observed in ranges.items()}

    def _pass(
        self, observers: Mapping[str, RangeObserver] | Mapping[str, HistogramObserver], number: int, passes: int
    ) -> int:
        state = CarriedState(self._carry)
        half = None if self._total is None else self._total / 2
        count = 0
        for sample in self._samples():
            feeds = state.fill(sample.feeds)
            values: dict[str, Array] = dict(zip(self._outputs, self._run(feeds, sample.name), strict=True))
            state.update(values)
            values.update(feeds)
            second = half is not None and count >= half
            for name in self._names:
                observer = observers.get(name)
                if isinstance(observer, RangeObserver):
                    observer.observe(values[name], second_half=second)
                elif observer is not None:
                    observer.observe(values[name])
            count += 1
            total = None if self._total is None else passes * self._total
            done = count + number * (self._total or self.count)
            self._on_progress(Progress("calibrating", sample.name, done, total))
        return count

    def _run(self, feeds: Mapping[str, Array], name: str) -> list[Array]:
        try:
            found: list[Array] = self._session.run(None, feeds)
        except Exception as problem:
            if not _is_onnxruntime(problem):
                raise
            given = ", ".join(f"{key} {value.dtype} {list(value.shape)}" for key, value in feeds.items())
            raise DataError(
                f"the model does not run on {name} of the calibration data: {_reason(problem)}",
                code="DK378",
                context=[f"it was given {given}"],
                hint="--calib DATA with samples that the model takes; --dim NAME=MIN..MAX bounds random sizes",
            ) from problem
        return found


def _is_onnxruntime(problem: Exception) -> bool:
    return type(problem).__module__.startswith("onnxruntime")


def _reason(problem: Exception) -> str:
    text = " ".join(str(problem).split())
    return text.rpartition("Status Message: ")[2][:500]


def _tensor_range(observed: RangeObserver, histogram: HistogramObserver | None, method: Method) -> TensorRange:
    if not observed.fired:
        return TensorRange(0.0, 0.0, 0, not_finite=observed.not_finite)
    low, high = observed.minimum, observed.maximum
    forms = {}
    for form, symmetric in (("affine", False), ("symmetric", True)):
        if histogram is None:
            whole = Interval(low, high)
            forms[form] = whole.symmetric() if symmetric else whole.with_zero()
        else:
            forms[form] = choose_interval(histogram, method, symmetric=symmetric)
    return TensorRange(
        low,
        high,
        observed.samples,
        growth=round(observed.growth, 6),
        not_finite=observed.not_finite,
        typical=max(abs(low), abs(high)) if histogram is None else _typical(histogram),
        **forms,
    )


def _typical(histogram: HistogramObserver) -> float:
    magnitude = np.abs(histogram.centers)
    order = np.argsort(magnitude, kind="stable")
    kept = np.cumsum(histogram.counts[order])
    return float(magnitude[order][min(np.searchsorted(kept, TYPICAL * kept[-1]), order.size - 1)])
