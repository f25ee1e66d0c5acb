"""Which nodes cost half precision its accuracy, measured on data: they become float32 islands, as few as are needed."""

from __future__ import annotations

import dataclasses
import itertools
import time
from typing import TYPE_CHECKING

from deploykit import graph
from deploykit.data import open_request
from deploykit.parity import TOLERANCES
from deploykit.progress import OnProgress, Progress
from deploykit.quantize.half_switches import SINCE, Array, Loss, Switches
from deploykit.quantize.holdout import calibrating, carried, held_out, widened

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    import onnx_ir as ir

    from deploykit.data import Sample
    from deploykit.quantize.half_formats import HalfFormat
    from deploykit.quantize.settings import Settings

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
# Weights are rounded anew in every run: beyond this the model is too large to be searched.
LARGEST_BYTES = 1 << 30


@dataclasses.dataclass(frozen=True, slots=True)
class Refinement:
    """What was found. before, after: the largest difference from float on the data, in units of the tolerance.

    islands: the nodes that are to stay float32, the costliest first; empty when none is needed or none helps.
    costly: the nodes that cost most, whether or not leaving them in float32 is enough.
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


def refine(
    model: ir.Model,
    source: Path,
    form: HalfFormat,
    converted: Collection[str],
    settings: Settings,
    on_progress: OnProgress,
) -> Refinement | None:
    """Finds the nodes to leave in float32 so that the calibration data stays within the precision's tolerance.

    model: the float model. converted: names of the nodes that would be half. None where nothing can be measured (no
    calibration data, a model of more than 1 GiB or of an opset without Where).
    """
    weights = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)
    request = settings.data
    if request is None or not settings.calibrates or weights > LARGEST_BYTES or graph.opset(model) < SINCE:
        return None
    inputs, _ = graph.interface(model)
    dataset = open_request(widened(request), inputs, source)  # type: ignore[arg-type]
    carry = carried(request)
    samples = list(itertools.islice(calibrating(dataset, held_out(dataset, request)), 4 * JUDGES if carry else JUDGES))
    switches = Switches(model, form, converted, carry)
    return _Search(switches, samples, form, on_progress, in_order=bool(carry)).run()


class _Search:
    def __init__(
        self, switches: Switches, samples: list[Sample], form: HalfFormat, on_progress: OnProgress, *, in_order: bool
    ) -> None:
        self._switches = switches
        self._on_progress = on_progress
        self._in_order = in_order  # samples that carry state cannot be taken apart
        self._tolerance = TOLERANCES[form.name]
        self._half: list[dict[str, Array]] | None = None  # the judges' outputs, where all nodes have been half already
        self._samples, reference = self._in_time(samples)
        self._loss = Loss(reference, self._tolerance)
        self._evaluations = 0
        self._until = time.monotonic() + SECONDS

    def run(self) -> Refinement:
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
        while self._evaluations < EVALUATIONS and time.monotonic() < self._until:
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
        """The fewest groups whose float32 brings all samples into the tolerance; none if a quarter of the nodes do not.

        Returns the nodes, and the largest difference with them (with the costliest quarter when that is not enough).
        """
        nodes = set(self._switches.nodes)
        sizes = list(itertools.accumulate(len(group) for _, group in groups))
        most = sum(size <= max(1, LARGEST_SHARE * len(nodes)) for size in sizes)

        def islands(count: int) -> list[str]:
            return [name for _, group in groups[:count] for name in group]

        low, high = 1, most
        while low < high:
            middle = (low + high) // 2
            if self._cost(nodes - set(islands(middle)), few)[0] <= MARGIN:
                high = middle
            else:
                low = middle + 1
        for count in dict.fromkeys((low, most)) if most else ():
            after, _ = self._cost(nodes - set(islands(count)), everyone)
            if after <= 1.0:
                return tuple(islands(count)), after
        return (), after if most else float("inf")
