"""Static INT8: calibrated once, then rewritten as often as wanted (a search tries many recipes on one calibration)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from deploykit import graph
from deploykit.progress import OnProgress, Progress
from deploykit.quantize import findings as say
from deploykit.quantize.measuring import Measured, measure_ranges
from deploykit.quantize.plan import Plan, make_plan, observable
from deploykit.quantize.prepare import load_float
from deploykit.quantize.product import counts, macs_share, written
from deploykit.quantize.qdq import Inserter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import onnx_ir as ir

    from deploykit.quantize.ranges import Ranges
    from deploykit.quantize.settings import Settings
    from deploykit.quantize.thresholds import Method
    from deploykit.report import Finding
    from deploykit.target import QuantizationScheme


@dataclasses.dataclass(frozen=True, slots=True)
class Recipe:
    """One way to quantize a calibrated model.

    exclude: nodes (names or op types) that stay float. method: of calibration; None: the one that was asked for.
    smooth_quant: migration strength of SmoothQuant, 0 to 1; None: off. bias_correction: shift biases by the measured
    mean error.
    """

    exclude: tuple[str, ...] = ()
    method: Method | None = None
    smooth_quant: float | None = None
    bias_correction: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Quantized:
    """One result: the rewritten model, the plan it followed, and u8*s8 saturation by node."""

    model: ir.Model
    plan: Plan
    saturating: dict[str, float]

    @property
    def nodes(self) -> list[str]:
        """Names of the nodes that compute in integers."""
        return [node.name or "" for node in self.plan.nodes]


class StaticQuantizer:
    """A float model with its ranges, ready to be quantized."""

    def __init__(self, source: Path, settings: Settings, on_progress: OnProgress) -> None:
        """Loads the model and measures the ranges (or reads them). Raises as `load_float` and `measure_ranges` do."""
        assert settings.scheme is not None
        self.source = source
        self.scheme: QuantizationScheme = settings.scheme
        self.base, self.findings = load_float(source)
        self.macs = graph.macs(self.base)
        # A first plan, so that a wrong --exclude is refused before minutes of calibration.
        make_plan(self.base, self.scheme, exclude=settings.exclude)
        names = observable(self.base)
        self.measured: Measured = measure_ranges(self.base, names, source, settings, on_progress)
        self._unseen = self.measured.ranges.unseen(names)

    def quantize(self, recipe: Recipe) -> Quantized:
        """A quantized copy of the model; the float one stays as it is."""
        model = self.base.clone()
        ranges = self._ranges(recipe.method)
        plan = make_plan(model, self.scheme, exclude=recipe.exclude, unseen=self._unseen)
        saturating: dict[str, float] = {}
        if plan.nodes:
            inserter = Inserter(model, plan, ranges, self.scheme)
            inserter.run()
            saturating = inserter.saturating
        return Quantized(model, plan, saturating)

    def _ranges(self, method: Method | None) -> Ranges:
        if method is None or method == self.measured.ranges.method:
            return self.measured.ranges
        other: Callable[[Method], Ranges] | None = getattr(self.measured, "with_method", None)
        return self.measured.ranges if other is None else other(method)

    def about(self, made: Quantized) -> list[Finding]:
        """Everything there is to say about calibration and one result."""
        used = {value.name or "" for value in made.plan.readers}
        return [
            *self.findings,
            *self.measured.findings,
            *say.about_ranges(self.measured.ranges, used),
            *say.about_plan(made.plan.nodes, made.plan.left),
            *say.about_saturation(made.saturating),
        ]


def quantize_static(source: Path, output: Path, settings: Settings, on_progress: OnProgress) -> dict[str, Any]:
    """The int8 job: calibrates, inserts Q/DQ in the target's scheme, writes."""
    from deploykit.quantize import search  # which builds on this module

    if settings.searches:
        return search.quantize_mixed(source, output, settings, on_progress)
    quantizer = StaticQuantizer(source, settings, on_progress)
    on_progress(Progress("inserting Q/DQ", source.name))
    made = quantizer.quantize(
        Recipe(settings.exclude, smooth_quant=settings.smooth_quant, bias_correction=settings.bias_correction)
    )
    facts = written(made.model, output, "int8", quantizer.about(made))
    facts["metrics"] |= {
        "calibration": quantizer.measured.metrics,
        **counts(made.nodes, made.plan.left),
        "int8_macs_share": macs_share(made.nodes, quantizer.macs),
    }
    if settings.sensitivity:
        search.add_sensitivity(facts, quantizer, output, settings, on_progress)
    return facts
