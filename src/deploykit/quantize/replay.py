"""A few calibration samples once more: what equalisation and bias correction look at."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit import graph
from deploykit.data import CarriedState, open_request
from deploykit.data.dataset import spread
from deploykit.data.holdout import calibrating, carried, held_out, widened
from deploykit.progress import OnProgress, Progress
from deploykit.quantize.taps import run_tapped

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import onnx_ir as ir
    import onnxruntime as ort

    from deploykit.data import Sample
    from deploykit.quantize.settings import Settings

Array = np.ndarray[Any, Any]
NUMBERS = re.compile(r"tensor\((float|float16|double|bool|u?int(8|16|32|64))\)")
# Means over channels and positions settle early.
SAMPLES = 32


class Replay:
    """Runs sessions of variants of one model over some of its calibration samples."""

    def __init__(
        self, model: ir.Model, source: Path, settings: Settings, on_progress: OnProgress, *, limit: int = SAMPLES
    ) -> None:
        """Opens nothing yet. settings.data: the DataRequest that calibrates, or None."""
        self._inputs, _ = graph.interface(model)
        self._source = source
        self._request = settings.data
        self._on_progress = on_progress
        self._limit = limit

    @property
    def available(self) -> bool:
        """Whether there are samples: ranges that come from a file need none."""
        return self._request is not None and self._request["purpose"] == "calibration"

    def __call__(self, session: ort.InferenceSession, what: str) -> Iterator[dict[str, Array]]:
        """Inputs and outputs of the session for each sample, by name. what: names the step for the progress.

        Raises DataError (DK378) when the model refuses a sample.
        """
        # What else a model may give (texts, sequences) nobody looks at.
        names = [output.name for output in session.get_outputs() if NUMBERS.fullmatch(output.type)]
        request = self._request
        assert request is not None
        state = CarriedState(carried(request))
        for number, sample in enumerate(self._samples(), 1):
            feeds = state.fill(sample.feeds)
            values = run_tapped(session, feeds, names, sample.name)
            state.update(values)
            self._on_progress(Progress(what, sample.name, number))
            yield {**values, **feeds}

    def _samples(self) -> Iterator[Sample]:
        """Spread over the data that calibrates; the first ones where its size is unknown or state is carried."""
        request = self._request
        assert request is not None
        dataset = open_request(widened(request), self._inputs, self._source)  # type: ignore[arg-type]
        held = held_out(dataset, request)
        samples = calibrating(dataset, held)
        total = None if dataset.total is None else dataset.total - len(held)
        if total is None or total <= self._limit or carried(request):
            yield from itertools.islice(samples, self._limit)
            return
        wanted = set(spread(total, self._limit))
        yield from (sample for index, sample in enumerate(samples) if index in wanted)
