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
from deploykit.quantize.half_switches import SINCE, Loss, Switches
from deploykit.quantize.holdout import calibrating, carried, held_out, widened

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    import onnx_ir as ir

    from deploykit.data import Sample
    from deploykit.quantize.half_formats import HalfFormat
    from deploykit.quantize.settings import Settings

# Samples that judge, and the worst of them that attribute the loss to nodes.
JUDGES, WORST = 16, 3
EVALUATIONS = 96
SECONDS = 60.0
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
        self._samples = samples
        self._on_progress = on_progress
        self._in_order = in_order
        self._loss = Loss(switches.run(samples, ()), TOLERANCES[form.name])
        self._chosen = list(range(len(samples)))
        self._evaluations = 0
        self._until = time.monotonic() + SECONDS

    def run(self) -> Refinement:
        everything = set(self._switches.nodes)
        found = self._switches.run(self._samples, everything)
        before, _ = self._loss.of(found, self._chosen)
        if before <= MARGIN or not everything:
            return Refinement(before, before, (), (), 1)
        if not self._in_order:  # samples that carry state cannot be taken apart
            each = [(self._loss.of([outputs], [index])[0], index) for index, outputs in enumerate(found)]
            self._chosen = sorted(index for _, index in sorted(each, reverse=True)[:WORST])
        ranked = self._ranked()
        islands, after = self._fewest(ranked, everything, before)
        costly = tuple(name for name, _ in ranked[:8])
        return Refinement(before, after, islands, costly, self._evaluations)

    def _cost(self, on: Collection[str]) -> tuple[float, float]:
        self._evaluations += 1
        self._on_progress(Progress("measuring what half precision costs", f"{len(on)} nodes", self._evaluations))
        samples = [self._samples[index] for index in self._chosen]
        return self._loss.of(self._switches.run(samples, on), self._chosen)

    def _ranked(self) -> list[tuple[str, float]]:
        """Single nodes by what half precision costs in each alone; the costliest group is split until time is up."""
        nodes = self._switches.nodes
        groups = [(self._cost(nodes)[1], nodes)]
        singles: list[tuple[str, float]] = []
        while groups and self._evaluations < EVALUATIONS and time.monotonic() < self._until:
            groups.sort(key=lambda item: item[0])
            cost, group = groups.pop()
            if len(group) == 1:
                singles.append((group[0], cost))
                continue
            middle = len(group) // 2
            groups += [(self._cost(half)[1], half) for half in (group[:middle], group[middle:])]
        singles += [(group[0], cost) for cost, group in groups if len(group) == 1]
        return sorted(singles, key=lambda item: -item[1])

    def _fewest(
        self, ranked: list[tuple[str, float]], everything: set[str], before: float
    ) -> tuple[tuple[str, ...], float]:
        """The fewest of the costliest nodes whose float32 brings all samples into the tolerance; none if none does."""
        most = max(1, int(LARGEST_SHARE * len(everything)))
        names = [name for name, _ in ranked[:most]]
        self._chosen = list(range(len(self._samples)))
        low, high, best = 1, len(names), (0, before)
        if not names:
            return (), before
        whole, _ = self._cost(everything - set(names))
        if whole > 1.0:
            return (), min(whole, before)
        best = (high, whole)
        while low < high:
            middle = (low + high) // 2
            reached, _ = self._cost(everything - set(names[:middle]))
            if reached <= MARGIN:
                high, best = middle, (middle, reached)
            else:
                low = middle + 1
        return tuple(names[: best[0]]), best[1]
