"""What a candidate is worth: its outputs against float on data that did not calibrate, and its task accuracy.

Runs models in this process: part of a job in a worker. Float runs once; a candidate is built, measured and forgotten.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from typing import TYPE_CHECKING, Any

from deploykit import graph, io
from deploykit.comparison import Side
from deploykit.data.holdout import carried, verifying
from deploykit.data.request import data_request, open_request
from deploykit.parity import TOLERANCES, OutputComparison
from deploykit.progress import OnProgress, Progress
from deploykit.quantize.facts import facts_of
from deploykit.quantize.paired import Drop, Folded, drop_between
from deploykit.quantize.product import macs_share
from deploykit.quantize.sample_store import SampleStore
from deploykit.quantize.sizes import macs_of_sample
from deploykit.quantize.verify import VERIFY_SAMPLES, VERIFY_STEPS, verification_data
from deploykit.runtime import RuntimeOptions, open_runtime

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from deploykit.data import Dataset
    from deploykit.quantize.settings import Settings
    from deploykit.quantize.static import Recipe, StaticQuantizer
    from deploykit.runtime import Runtime

# A candidate was chosen on the samples that it is judged on, so it has to be better than the gate by this much.
MARGIN_DB = 1.0
# Labelled samples that each candidate is scored on; the one that is chosen is scored on all.
SCORED = 1024


@dataclasses.dataclass(frozen=True, slots=True)
class Score:
    """One candidate. nodes: compute in integers. macs_share: their part of the multiply-accumulates, 0 to 1.

    sqnr_db: of the worst output; infinite when all are equal, -infinite when one cannot be compared (NaN, shapes).
    sound: every output holds the int8 gate with the margin. drop: of the task metric; None where it was not scored.
    model: digest of the candidate's file.
    """

    recipe: Recipe
    nodes: tuple[str, ...]
    macs_share: float
    sqnr_db: float
    sound: bool
    drop: Drop | None = None
    model: str = ""

    def as_dict(self) -> dict[str, Any]:
        """JSON form, without the names of the nodes; the SQNR is null unless it is finite."""
        return {
            "method": self.recipe.method,
            "smooth_quant": self.recipe.smooth_quant,
            "bias_correction": self.recipe.bias_correction,
            "int8_nodes": len(self.nodes),
            "int8_macs_share": self.macs_share,
            "sqnr_db": in_db(self.sqnr_db),
            "drop": None if self.drop is None else self.drop.value,
        }


def in_db(value: float) -> float | None:
    """A level for JSON: None unless it is finite."""
    return round(value, 2) if math.isfinite(value) else None


@dataclasses.dataclass(frozen=True, slots=True)
class _Wanted:
    """Which parts of a score are asked for: the task metric, on all samples, and even of unsound outputs."""

    scored: bool
    whole: bool
    always: bool

    def has(self, score: Score) -> bool:
        """Whether the score has them already."""
        return score.drop is not None or not self.scored or not (score.sound or self.always)


class Evaluator:
    """Scores recipes for one calibrated model, each once."""

    def __init__(self, quantizer: StaticQuantizer, settings: Settings, folder: Path, on_progress: OnProgress) -> None:
        """Runs the float model over the samples; `folder` is for scratch files and goes away with its owner."""
        self._quantizer = quantizer
        self._folder = folder
        self._on_progress = on_progress
        self._request: Mapping[str, Any] = settings.data or data_request(None, "parity")
        self._accuracy = settings.accuracy
        self._store = SampleStore(folder)
        self._scores: dict[str, Score] = {}  # by recipe
        self._models: dict[str, Score] = {}  # by model
        self._sets: dict[bool, Dataset] = {}
        self._float: dict[bool, Folded] = {}
        self.evaluations = 0
        tolerance = TOLERANCES["int8"]
        assert tolerance.min_sqnr_db is not None
        self.gate = dataclasses.replace(tolerance, min_sqnr_db=tolerance.min_sqnr_db + MARGIN_DB)
        self._run_float()
        self.macs = macs_of_sample(quantizer.base, next(iter(self._store))[0])
        self.ops = {node.name or "": node.op_type for node in quantizer.base.graph.all_nodes()}

    def share(self, names: Sequence[str]) -> float:
        """Share of the multiply-accumulates that the named nodes do, at the sizes of the first sample; 0 to 1."""
        return macs_share(names, self.macs)

    def without_followers(self, names: Sequence[str]) -> tuple[str, ...]:
        """Those of the nodes whose results reach none of the others."""
        wanted = set(names)
        found: list[str] = []
        reaching: set[str] = set()  # all nodes of the main graph that lead to a wanted one
        for node in reversed(list(self._quantizer.base.graph)):
            readers = {use.node.name or "" for value in node.outputs for use in value.uses()}
            leads = bool(readers & (wanted | reaching))
            if leads:
                reaching.add(node.name or "")
            elif node.name in wanted:
                found.append(node.name)
        return tuple(reversed(found))

    @property
    def labelled(self) -> bool:
        """Whether candidates can be scored on a task."""
        return self._accuracy is not None

    @property
    def samples(self) -> int:
        """How many samples the outputs are compared on."""
        return len(self._store)

    @property
    def is_partial(self) -> bool:
        """Whether there are more labelled samples than a candidate is scored on."""
        return self._accuracy is not None and self._scoring(whole=False).total == SCORED

    def _run_float(self) -> None:
        source = self._quantizer.source
        runtime = open_runtime(source, RuntimeOptions(optimize=False))
        try:
            dataset, held = verification_data(self._request, source)
            carry = carried(self._request)
            limit = VERIFY_STEPS if carry else VERIFY_SAMPLES
            side = Side(runtime, carry, "reference")
            total = len(held) or (limit if dataset.total is None else min(limit, dataset.total))
            for done, sample in enumerate(verifying(dataset, held, limit)):
                self._on_progress(Progress("running float", sample.name, done, total))
                self._store.add(sample, side(sample))
        finally:
            runtime.close()

    def evaluate(self, recipe: Recipe, *, scored: bool = True) -> Score:
        """The score of a recipe; with `scored` the task metric too, where the outputs are sound (luck is no reason)."""
        return self._evaluate(recipe, scored=scored, whole=False, always=False)

    def score_always(self, recipe: Recipe) -> Score:
        """The score with the task metric, however bad the outputs are."""
        return self._evaluate(recipe, scored=True, whole=False, always=True)

    def confirm(self, recipe: Recipe) -> Score:
        """The score on all labelled samples."""
        return self._evaluate(recipe, scored=True, whole=self.is_partial, always=False)

    def _evaluate(self, recipe: Recipe, *, scored: bool, whole: bool, always: bool) -> Score:
        wanted = _Wanted(scored=self._accuracy is not None and scored, whole=whole, always=always)
        key = f"{digest_of(recipe)} {whole}"
        found = self._scores.get(key)
        if found is None or not wanted.has(found):
            found = self._scores[key] = self._measure(recipe, wanted)
        return found

    def _measure(self, recipe: Recipe, wanted: _Wanted) -> Score:
        made = self._quantizer.quantize(recipe)
        names = tuple(made.nodes)
        path = self._folder / "candidate.onnx"
        files = [self._folder / name for name in graph.save(made.model, path)]
        del made
        try:
            # Another recipe may have made the same model: a method that chose the same ranges, nothing to smooth.
            digest = io.digest(files)
            key = f"{digest} {wanted.whole}"
            known = self._models.get(key)
            if known is None or not wanted.has(known):
                self.evaluations += 1
                self._models[key] = known = self._run(path, recipe, names, wanted, known, digest)
            return dataclasses.replace(known, recipe=recipe)
        finally:
            for file in files:
                file.unlink(missing_ok=True)

    def _run(
        self, path: Path, recipe: Recipe, names: tuple[str, ...], wanted: _Wanted, known: Score | None, digest: str
    ) -> Score:
        runtime = open_runtime(path, RuntimeOptions(spin=False))
        try:
            sqnr, sound = self._compare(runtime) if known is None else (known.sqnr_db, known.sound)
            drop = None
            if wanted.scored and (sound or wanted.always):
                reference = self._reference(whole=wanted.whole)
                drop = drop_between(reference, self._score(runtime, whole=wanted.whole))
        finally:
            runtime.close()
        return Score(recipe, names, self.share(names), sqnr, sound, drop, digest)

    def _compare(self, runtime: Runtime) -> tuple[float, bool]:
        """SQNR of the worst output, and whether every output is within the gate."""
        side = Side(runtime, carried(self._request), "candidate")
        rows: dict[str, OutputComparison] = {}
        for sample, outputs in self._store:
            found = side(sample)
            for name, reference in outputs.items():
                rows.setdefault(name, OutputComparison(name, self.gate)).add(reference, found[name])
        return min(map(_level, rows.values()), default=-math.inf), all(row.passed for row in rows.values())

    def _reference(self, *, whole: bool) -> Folded:
        if whole not in self._float:
            runtime = open_runtime(self._quantizer.source, RuntimeOptions(optimize=False))
            try:
                self._float[whole] = self._score(runtime, whole=whole)
            finally:
                runtime.close()
        return self._float[whole]

    def _scoring(self, *, whole: bool) -> Dataset:
        assert self._accuracy is not None
        if whole not in self._sets:
            request = dict(self._accuracy["data"])
            if not whole:
                request["samples"] = min(request["samples"] or SCORED, SCORED)
            inputs = facts_of(self._quantizer.source).inputs
            self._sets[whole] = open_request(request, inputs, self._quantizer.source)  # type: ignore[arg-type]
        return self._sets[whole]

    def _score(self, runtime: Runtime, *, whole: bool) -> Folded:
        assert self._accuracy is not None
        side = Side(runtime, carried(self._accuracy["data"]))
        metric = Folded(self._accuracy["metric"], (self._quantizer.source,))
        for sample in self._scoring(whole=whole):
            metric.add(side(sample), sample.label)
        return metric


def digest_of(recipe: Recipe) -> str:
    """Equal for recipes that make the same model."""
    facts = {**dataclasses.asdict(recipe), "exclude": sorted(set(recipe.exclude))}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _level(row: OutputComparison) -> float:
    """One output's signal to noise in dB; of classes and strings the inverse share of those that differ."""
    found = row.result()
    if found["exact"]:
        return math.inf
    share = found.get("mismatch_share")
    if share is not None:
        return -10 * math.log10(share) if share else -math.inf
    return -math.inf if found["sqnr_db"] is None else float(found["sqnr_db"])
