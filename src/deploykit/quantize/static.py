"""Static INT8: calibrated once, then rewritten as often as wanted (a search tries many recipes on one calibration)."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit import graph
from deploykit.errors import DataError
from deploykit.progress import OnProgress, Progress
from deploykit.quantize import findings as say
from deploykit.quantize.affine import fold_affine
from deploykit.quantize.bias_correction import correct_biases, mean_errors
from deploykit.quantize.constants import fold_moves
from deploykit.quantize.gemm import fuse_gemm
from deploykit.quantize.hard_swish import shorten_hard_swish
from deploykit.quantize.measuring import Measured, measure_ranges
from deploykit.quantize.plan import Plan, make_plan, observable
from deploykit.quantize.prepare import load_float
from deploykit.quantize.product import counts, macs_share, written
from deploykit.quantize.qdq import Inserter, shared_parameters
from deploykit.quantize.ranges import Ranges, check_strength, load_ranges
from deploykit.quantize.replay import Array, Replay
from deploykit.quantize.resume import is_progress
from deploykit.quantize.smoothing import choose_factors, equalise, find_sites, measure_channels
from deploykit.quantize.taps import SAMPLE_REFUSED

if TYPE_CHECKING:
    import onnx_ir as ir

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
    """One result: the rewritten model, the plan it followed, and u8*s8 saturation by node.

    corrected, reduced: names of the nodes with a corrected bias and with 7-bit weights.
    """

    model: ir.Model
    plan: Plan
    saturating: dict[str, float]
    corrected: list[str] = dataclasses.field(default_factory=list)
    reduced: list[str] = dataclasses.field(default_factory=list)

    @property
    def nodes(self) -> list[str]:
        """Names of the nodes that compute in integers."""
        return [node.name or "" for node in self.plan.nodes]


@dataclasses.dataclass(slots=True)
class _Variant:
    """The float model equalised at one strength, its ranges and the mean errors of its layers by method."""

    model: ir.Model
    measured: Measured
    unseen: set[str]
    ranges: dict[str, Ranges] = dataclasses.field(default_factory=dict)
    errors: dict[str, dict[str, Array]] = dataclasses.field(default_factory=dict)


class StaticQuantizer:
    """A float model with its ranges, ready to be quantized."""

    def __init__(self, source: Path, settings: Settings, on_progress: OnProgress) -> None:
        """Loads the model and measures the ranges (or reads them). Raises as `load_float` and `measure_ranges` do."""
        assert settings.scheme is not None
        self.source = source
        self.scheme: QuantizationScheme = settings.scheme
        self._settings = settings
        self._on_progress = on_progress
        self._plain, self.findings = load_float(source)
        self._shorten(settings.exclude)
        self.macs = graph.macs(self._plain)
        # A first plan, so that a wrong --exclude is refused before minutes of calibration.
        make_plan(self._plain, self.scheme, exclude=settings.exclude)
        self._replay = Replay(self._plain, source, settings, on_progress)
        self._variants: dict[float | None, _Variant] = {}
        first = self._variant(settings.smooth_quant)
        self.base, self.measured = first.model, first.measured

    def _shorten(self, exclude: tuple[str, ...]) -> None:
        """What Q/DQ would otherwise keep apart becomes one node; what is excluded by name keeps its nodes."""
        changed = fold_moves(self._plain) + fold_affine(self._plain, exclude)
        if self.scheme.integer_sums:
            changed += fuse_gemm(self._plain, exclude) + shorten_hard_swish(self._plain, exclude)
        if changed:
            graph.infer_shapes(self._plain)

    def quantize(self, recipe: Recipe) -> Quantized:
        """A quantized copy of the model; the float one stays as it is.

        A smooth_quant that is new calibrates again: other ranges belong to it.
        """
        asked = self._settings.smooth_quant if recipe.smooth_quant is None else recipe.smooth_quant
        variant = self._variant(asked)
        model = variant.model.clone()
        method = recipe.method or variant.measured.ranges.method
        if method not in variant.ranges:  # thresholds of some methods take as long as the rewriting
            variant.ranges[method] = variant.measured.with_method(method)  # type: ignore[arg-type]
        ranges = variant.ranges[method]
        plan = make_plan(model, self.scheme, exclude=recipe.exclude, unseen=variant.unseen)
        saturating: dict[str, float] = {}
        corrected: list[str] = []
        reduced: list[str] = []
        if plan.nodes:
            if recipe.bias_correction and self._replay.available:
                errors = self._errors(variant, ranges)
                names = {node.name or "" for node in plan.nodes}
                corrected = correct_biases(model, {name: errors[name] for name in errors if name in names})
            inserter = Inserter(model, plan, self.scheme, shared_parameters(plan, ranges, self.scheme))
            inserter.run()
            saturating, reduced = inserter.saturating, inserter.reduced
        return Quantized(model, plan, saturating, corrected, reduced)

    def _errors(self, variant: _Variant, ranges: Ranges) -> dict[str, Array]:
        """Mean errors of all layers by the method of the ranges: each adds its own, whichever others are float."""
        if ranges.method not in variant.errors:
            plan = make_plan(variant.model, self.scheme, unseen=variant.unseen)
            parameters = shared_parameters(plan, ranges, self.scheme)
            replay = functools.partial(self._replay, what="correcting biases")
            variant.errors[ranges.method] = mean_errors(variant.model, plan, parameters, self.scheme, replay)
        return variant.errors[ranges.method]

    def _variant(self, strength: float | None) -> _Variant:
        if strength not in self._variants:
            settings = self._settings
            if strength != settings.smooth_quant:  # the file of ranges belongs to the strength that was asked for
                settings = dataclasses.replace(settings, ranges=None, smooth_quant=strength)
            model = self._plain.clone()
            factors = self._factors(model, settings)
            equalise(model, factors)
            names = observable(model)
            kept = {name: [float(f"{factor:.9g}") for factor in found] for name, found in factors.items()}
            measured = measure_ranges(model, names, self.source, settings, self._on_progress, kept)
            self._variants[strength] = _Variant(model, measured, measured.ranges.unseen(names))
        return self._variants[strength]

    def _factors(self, model: ir.Model, settings: Settings) -> dict[str, Array]:
        """What the channels are divided by: as in the file of ranges, or by what the data shows."""
        file = Path(settings.ranges) if settings.ranges else None
        if file is not None and file.exists() and not is_progress(file):
            known = load_ranges(
                file,
                model_sha256=settings.model_sha256,
                data_sha256=settings.data_sha256,
                method=settings.method,
            )
            check_strength(file, known, settings.smooth_quant)
            return {name: np.asarray(found, np.float32) for name, found in known.factors.items()}
        sites = find_sites(model)
        if not sites or not self._replay.available:
            return {}
        try:
            statistics = measure_channels(model, sites, functools.partial(self._replay, what="measuring channels"))
        except DataError as problem:
            if problem.code != SAMPLE_REFUSED:
                raise
            return {}  # calibration meets the same sample, and says which one and why
        return choose_factors(sites, statistics, strength=settings.smooth_quant)

    def about(self, made: Quantized) -> list[Finding]:
        """Everything there is to say about calibration and one result."""
        # What equalising made by dividing is not in there: it moves as what it was made of.
        used = {value.name or "" for value in made.plan.readers} & self.measured.ranges.tensors.keys()
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
        "equalised_tensors": len(quantizer.measured.ranges.factors),
        "corrected_biases": len(made.corrected),
        "reduced_weights": len(made.reduced),
        **counts(made.nodes, made.plan.left),
        "int8_macs_share": macs_share(made.nodes, quantizer.macs),
    }
    if settings.sensitivity:
        search.add_sensitivity(facts, quantizer, output, settings, on_progress)
    return facts
