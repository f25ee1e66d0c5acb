"""Compares a rewritten model with its original, in this process."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit import graph, io
from deploykit.comparison import compare
from deploykit.equivalence.kept import interface_differences, kept_differences, pin_seeds, stand_in
from deploykit.equivalence.probe import Plan, Probe
from deploykit.errors import VendorError
from deploykit.graph.reading import EXTERNAL_FILES
from deploykit.graph.stochastic import stochastic_in
from deploykit.parity import TOLERANCES, row_for
from deploykit.progress import OnProgress, Progress, silent
from deploykit.reference import Reference, StandardReference, free_memory
from deploykit.report import Finding, failure, warning

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    import onnx_ir as ir

    from deploykit.data import Sample
    from deploykit.reference import Interface

    Opener = Callable[[Path], Reference]

# Random data takes the minimum of every dimension first, then the maximum, then values between.
POINTS = 5
# From here on two copies of the weights count, and freeing one is worth the time that it takes.
_LARGE = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Baseline:
    """The original's outputs on the inputs that candidates are compared on.

    taken: samples with their outputs; empty where nothing was run, and `findings` say why. opener: of the candidates.
    """

    taken: Sequence[tuple[Sample, dict[str, Any]]]
    findings: Sequence[Finding]
    opener: Opener


def compare_models(
    original: Path,
    candidate: Path,
    *,
    dims: Mapping[str, Sequence[int | None]] | None = None,
    seed: int = 0,
    samples: int = POINTS,
    bound: str = "fp32",
    requantized: Collection[str] = (),
    opener: Opener = Reference,
    baseline: Baseline | None = None,
    on_progress: OnProgress = silent,
) -> dict[str, Any]:
    """Proves a candidate against its original; returns JSON: outputs, samples, compared, findings.

    The tolerance is that of the original's float type, or of `bound` (a row of `parity.TOLERANCES`) where that is
    looser. requantized: names of quantization nodes that were replaced on purpose. opener: opens both models.
    baseline: what `run_original` gave for this original, `dims`, `seed` and `samples`, which then is not run again.
    Random nodes get the same seeds on both sides. Operators that the reference does not have are replaced on both sides
    by one that passes its first input on, and a warning names them. compared: False when not even that runs. Error
    findings are differences.
    """
    first, second = graph.load(original), graph.load(candidate)
    findings = interface_differences(first, second)
    findings += kept_differences(first, second, requantized)
    findings += [
        warning("DK630", f"the model is random in {name}: compared with fixed seeds") for name in stochastic_in(first)
    ]
    if any(finding.severity == "error" for finding in findings):
        return _result(findings)
    with io.scratch_folder() as folder:
        precision = row_for(_precision(first), bound)
        one, unknown = _runnable(first, original, Path(folder) / "original.onnx")
        two, _ = _runnable(second, candidate, Path(folder) / "candidate.onnx")
        if unknown:
            text = f"the reference has no operator for {', '.join(unknown)}: only what is around it was compared"
            findings.append(warning("DK631", text))
        plan = Plan.of(first, dims or {}, seed, samples) if baseline is None else None
        large = _is_large(first, original)
        del first, second  # their weights would stay beside those of the sessions
        if large:
            free_memory()
        # One after the other, so that the weights of one model are in memory.
        known = baseline or _run(one, plan, opener, on_progress)
        findings += known.findings
        if not known.taken:
            return _result(findings)
        if large:
            free_memory()
        return _compared(known, two, precision, findings, on_progress)


def run_original(
    original: Path,
    *,
    dims: Mapping[str, Sequence[int | None]] | None = None,
    seed: int = 0,
    samples: int = POINTS,
    opener: Opener = Reference,
    on_progress: OnProgress = silent,
) -> Baseline:
    """The part of `compare_models` that is the same for all candidates of an original; same arguments."""
    model = graph.load(original)
    with io.scratch_folder() as folder:
        side, _ = _runnable(model, original, Path(folder) / "original.onnx")
        plan = Plan.of(model, dims or {}, seed, samples)
        large = _is_large(model, original)
        del model
        if large:
            free_memory()
        return _run(side, plan, opener, on_progress)


@dataclasses.dataclass(frozen=True, slots=True)
class _Side:
    """A model as it is run: with fixed seeds and stand-ins, where it needs them."""

    path: Path
    interface: Interface

    def opened(self, opener: Opener) -> Reference:
        return Reference(self.path, interface=self.interface) if opener is Reference else opener(self.path)


def _runnable(model: ir.Model, given: Path, path: Path) -> tuple[_Side, list[str]]:
    """The file to run, `given` or one that is written at `path`, and what the reference has no operator for."""
    unknown = stand_in(model)
    if pin_seeds(model) or unknown:
        graph.save(model, path)
        given = path
    return _Side(given, graph.interface(model)), unknown


def _is_large(model: ir.Model, path: Path) -> bool:
    return sum(io.size_of(path.parent / name) for name in (path.name, *model.meta[EXTERNAL_FILES])) > _LARGE


def _run(side: _Side, plan: Plan | None, opener: Opener, on_progress: OnProgress) -> Baseline:
    findings: list[Finding] = []
    opened = _opened(side, opener, findings)
    if opened is None:
        return Baseline((), findings, opener)
    reference, opener = opened
    taken: list[tuple[Sample, dict[str, Any]]] = []
    try:
        # Inputs without a rank have no random data: such a model is compared by its structure only.
        if plan is None:
            findings.append(warning("DK632", "an input has no declared rank: the outputs were not compared"))
            return Baseline((), findings, opener)
        probe = Probe(plan, reference)
        for sample in probe.samples():
            on_progress(Progress("running the original", sample.name, len(taken), None))
            taken.append((sample, copy.deepcopy(probe.outputs)))  # the arrays would keep the session's memory
    finally:
        reference.close()
    if not taken:
        findings.append(warning("DK632", f"the original refuses every input that was tried: {probe.refusal}"))
    return Baseline(taken, findings, opener)


def _opened(original: _Side, opener: Opener, findings: list[Finding]) -> tuple[Reference, Opener] | None:
    """The original, opened or by the standard's own definitions, and what opens the other; None: it does not run."""
    try:
        return original.opened(opener), opener
    except VendorError as problem:
        refusal = problem.message[:300]
    try:
        standard = StandardReference(original.path)
    except VendorError:
        findings.append(warning("DK632", f"the original does not run here: {refusal}"))
        return None
    text = "onnxruntime does not take the original: compared by the standard's own definitions (onnx.reference)"
    findings.append(warning("DK660", text))
    return standard, StandardReference


def _compared(
    known: Baseline, candidate: _Side, precision: str, findings: list[Finding], on_progress: OnProgress
) -> dict[str, Any]:
    other = candidate.opened(known.opener)
    outputs, tolerance = iter([given for _, given in known.taken]), TOLERANCES[precision]
    inputs = [sample for sample, _ in known.taken]
    try:
        result = compare(
            lambda feeds: next(outputs), other.predict, inputs, tolerance=tolerance, on_progress=on_progress
        )
    except VendorError as problem:
        text = f"the rewritten model refuses an input that the original takes: {problem.message[:300]}"
        findings.append(failure("DK636", text))
        return _result(findings)
    finally:
        other.close()
    findings += [Finding.from_dict(facts) for facts in result["findings"]]
    return {**_result(findings), "outputs": result["outputs"], "samples": result["samples"], "compared": True}


def _result(findings: Iterable[Finding]) -> dict[str, Any]:
    return {"outputs": [], "samples": 0, "compared": False, "findings": [finding.as_dict() for finding in findings]}


def _precision(model: ir.Model) -> str:
    """The tolerance's row: rounding of the float type; a quantized model's own rewriting must stay exact as fp32."""
    found = graph.precision_of(model)
    return found if found in ("fp16", "bf16") else "fp32"
