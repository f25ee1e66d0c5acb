"""Which operations cost half precision its accuracy, found by switching them: as few as are needed stay float32."""

from __future__ import annotations

import dataclasses
import itertools
import time
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from deploykit.progress import OnProgress, Progress

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from deploykit.data import Sample
    from deploykit.parity import Tolerance

Array = np.ndarray[Any, Any]

# At most so many samples judge, as many as run in so many seconds; the worst of them attributes the loss to nodes.
JUDGES, JUDGING_SECONDS = 16, 10.0
# Where so many take longer than this, and lie below so much of the tolerance, they are enough: nothing is to be found.
FIRST, SLOW_SECONDS, FAR_BELOW = 2, 1.0, 0.4
# The worst samples decide how many islands are needed, before all judge the result.
WORST = 4
EVALUATIONS = 96
SECONDS = 45.0
# Data that was not seen may be a little worse than what was.
MARGIN = 0.8
# With more islands than this share of the nodes, half precision is not what the model needs.
LARGEST_SHARE = 0.25


class Switched(Protocol):
    """A float model whose operations can be put into half precision one by one.

    nodes: the names of those that can be, in the order in which they run.
    """

    nodes: list[str]

    def run(self, samples: Sequence[Sample], on: Collection[str]) -> list[dict[str, Array]]:
        """The outputs for each sample, in order, with these operations in half precision."""

    def each(self, samples: Sequence[Sample], on: Collection[str]) -> Iterator[dict[str, Array]]:
        """The same, one sample at a time."""


@dataclasses.dataclass(frozen=True, slots=True)
class Refinement:
    """What was found. before, after: the largest difference from float on the data, in units of the tolerance.

    islands: the operations that are to stay float32, the costliest first; empty when none is needed or none helps.
    costly: the operations that cost most, whether or not leaving them in float32 is enough.
    """

    before: float
    after: float
    islands: tuple[str, ...]
    costly: tuple[str, ...]
    evaluations: int

    @property
    def reached(self) -> bool:
        """Whether the result is within the tolerance on the data."""
        return self.after <= 1.0


class Loss:
    """How far outputs lie from float, in units of what the tolerance allows: beyond 1 the gate fails."""

    def __init__(self, reference: Sequence[Mapping[str, Array]], tolerance: Tolerance) -> None:
        """reference: the float outputs of each sample."""
        self._reference = reference
        self._rtol = tolerance.rtol or 0.0
        peaks: dict[str, float] = {}
        for outputs in reference:
            for name, array in outputs.items():
                if isinstance(array, np.ndarray) and array.dtype == np.float32 and array.size:  # not a sequence
                    peaks[name] = max(peaks.get(name, 0.0), float(np.abs(array).max()))
        self._floor = {name: (tolerance.atol_factor or 0.0) * peak for name, peak in peaks.items()}

    def of(self, found: Sequence[Mapping[str, Array]], samples: Sequence[int]) -> tuple[float, float]:
        """The largest and the root-mean-square difference over the samples at these positions of the reference."""
        largest, squares, count = 0.0, 0.0, 0
        for index, outputs in zip(samples, found, strict=True):
            for name, floor in self._floor.items():
                reference = self._reference[index][name].astype(np.float64)
                if np.shape(outputs[name]) != reference.shape:  # how many there are depends on what was rounded
                    largest, squares, count = np.inf, squares + 1e12, count + 1
                    continue
                with np.errstate(invalid="ignore", divide="ignore"):
                    limit = self._rtol * np.abs(reference) + floor
                    difference = np.abs(outputs[name] - reference)
                    ratio = np.where(difference == 0, 0.0, difference / limit)
                ratio = np.where(np.isnan(ratio), np.inf, ratio)
                largest = max(largest, float(ratio.max(initial=0.0)))
                squares += float(np.sum(np.minimum(ratio, 1e6) ** 2))
                count += ratio.size
        return largest, (squares / count) ** 0.5 if count else 0.0


class Search:
    """Finds the fewest operations that have to stay float32 for samples to stay within a tolerance."""

    def __init__(
        self,
        switches: Switched,
        samples: list[Sample],
        tolerance: Tolerance,
        on_progress: OnProgress,
        *,
        in_order: bool,
        largest_share: float = LARGEST_SHARE,
        evaluations: int | None = None,
    ) -> None:
        """samples: those that judge. in_order: they carry state from one to the next.

        largest_share: of the operations that may stay float32. evaluations: bounds the search by their number alone,
        so that the result is the same on every machine; without it time does, and all samples may not judge.
        """
        self._switches = switches
        self._largest_share = largest_share
        self._budget = evaluations or EVALUATIONS
        self._timed = evaluations is None
        self._on_progress = on_progress
        self._in_order = in_order  # samples that carry state cannot be taken apart
        self._tolerance = tolerance
        self._half: list[dict[str, Array]] | None = None  # the judges' outputs, where all nodes have been half already
        self._samples, reference = self._in_time(samples)
        self._loss = Loss(reference, self._tolerance)
        self._evaluations = 0
        self._until = time.monotonic() + SECONDS

    def run(self) -> Refinement:
        """What was found."""
        nodes = self._switches.nodes
        everyone = list(range(len(self._samples)))
        self._evaluations += 1
        found = self._half or self._switches.run(self._samples, nodes)
        before, _ = self._loss.of(found, everyone)
        if before <= MARGIN or not nodes:
            return Refinement(before, before, (), (), self._evaluations)
        each = sorted((-self._loss.of([outputs], [index])[0], index) for index, outputs in enumerate(found))
        worst = everyone if self._in_order else [index for _, index in each]
        groups = self._ranked(worst if self._in_order else worst[:1])
        few = worst if self._in_order else sorted(worst[:WORST])
        islands, after = self._fewest(groups, few, everyone)
        costly = tuple(name for _, group in groups[:8] for name in group[:1])
        return Refinement(before, min(after, before), islands, costly, self._evaluations)

    def _in_time(self, samples: list[Sample]) -> tuple[list[Sample], list[dict[str, Array]]]:
        """The samples that run in the time for judging, at least one, and their float outputs."""
        started = time.monotonic()
        reference: list[dict[str, Array]] = []
        for outputs in self._switches.each(samples, ()):
            reference.append(outputs)
            if not self._timed:
                continue
            passed = time.monotonic() - started
            if passed > JUDGING_SECONDS:
                break
            if len(reference) == FIRST and passed > SLOW_SECONDS and not self._in_order:
                found = self._switches.run(samples[:FIRST], self._switches.nodes)
                if Loss(reference, self._tolerance).of(found, range(FIRST))[0] <= FAR_BELOW:
                    self._half = found
                    break
        return samples[: len(reference)], reference

    def _cost(self, on: Collection[str], chosen: list[int]) -> tuple[float, float]:
        self._evaluations += 1
        self._on_progress(Progress("measuring what half precision costs", f"{len(on)} nodes", self._evaluations))
        return self._loss.of(self._switches.run([self._samples[index] for index in chosen], on), chosen)

    def _ranked(self, chosen: list[int]) -> list[tuple[float, list[str]]]:
        """Groups of neighbours by the power of the noise that a node of them adds; the noisiest is split on and on."""
        nodes = self._switches.nodes
        groups = [(float("inf"), nodes)]
        while self._evaluations < self._budget and (not self._timed or time.monotonic() < self._until):
            largest = max((item for item in groups if len(item[1]) > 1), key=lambda item: item[0], default=None)
            if largest is None or largest[0] == 0.0:
                break
            groups.remove(largest)
            middle = len(largest[1]) // 2
            parts = largest[1][:middle], largest[1][middle:]
            groups += [(self._cost(part, chosen)[1] ** 2, part) for part in parts]
        return sorted(groups, key=lambda item: -item[0] / len(item[1]))

    def _fewest(
        self, groups: list[tuple[float, list[str]]], few: list[int], everyone: list[int]
    ) -> tuple[tuple[str, ...], float]:
        """The fewest groups whose float32 brings all samples into the tolerance; none if the largest share does not.

        Returns the nodes, and the largest difference with them (with the costliest share when that is not enough).
        """
        nodes = set(self._switches.nodes)
        sizes = list(itertools.accumulate(len(group) for _, group in groups))
        most = sum(size <= max(1, self._largest_share * len(nodes)) for size in sizes)

        def islands(count: int) -> list[str]:
            return [name for _, group in groups[:count] for name in group]

        low, high = 1, most
        while low < high:
            middle = (low + high) // 2
            if self._cost(nodes - set(islands(middle)), few)[0] <= MARGIN:
                high = middle
            else:
                low = middle + 1
        # What is enough for the worst samples may be a little too few for all.
        counts = [low << step for step in range(8) if low << step < most] if self._largest_share == 1.0 else [low]
        for count in dict.fromkeys((*counts, most)) if most else ():
            after, _ = self._cost(nodes - set(islands(count)), everyone)
            if after <= 1.0:
                return tuple(islands(count)), after
        return (), after if most else float("inf")
