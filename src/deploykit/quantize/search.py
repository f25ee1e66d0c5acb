"""The jobs that decide by measuring: the most quantized model within a budget, and how sensitive its nodes are."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit import io
from deploykit.quantize.evaluator import MARGIN_DB, Evaluator, in_db
from deploykit.quantize.facts import facts_of
from deploykit.quantize.product import best_path, counts, written
from deploykit.quantize.sensitivity import Sensitivity, rank
from deploykit.quantize.static import Recipe, StaticQuantizer
from deploykit.quantize.strategy import Outcome, Search
from deploykit.report import Finding, failure, note, warning

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deploykit.progress import OnProgress
    from deploykit.quantize.settings import Settings
    from deploykit.quantize.static import Quantized

# Under this folder of the staging one lies what is kept although the gate failed.
KEPT = "kept"


def plain_recipe(settings: Settings) -> Recipe:
    """What was asked for, with nothing decided by measuring."""
    return Recipe(settings.exclude, smooth_quant=settings.smooth_quant, bias_correction=settings.bias_correction)


def quantize_mixed(source: Path, output: Path, settings: Settings, on_progress: OnProgress) -> dict[str, Any]:
    """The job of `mixed`, and of `int8` with a budget: INT8 where it is harmless, float32 for the rest.

    The budget: every output keeps the SQNR gate of INT8 with a margin of 1 dB, and with labels the metric drops by at
    most max_drop. What is left stays float32: half precision beside integers is slower on CPUs (casts at each border),
    and engines that gain by it choose it themselves for the float part.
    When no model with integer nodes is within the budget, a failing finding, and the best one under `kept`.
    """
    quantizer = StaticQuantizer(source, settings, on_progress)
    random = facts_of(source).stochastic
    if random:
        made = quantizer.quantize(plain_recipe(settings))
        return _facts(quantizer, made, output, [_not_measured(random[0])])
    started = time.perf_counter()
    with io.scratch_folder(output.parent) as scratch:
        evaluator = Evaluator(quantizer, settings, Path(scratch), on_progress)
        outcome = Search(evaluator, settings, plain_recipe(settings), on_progress).run()
        ranking = list(outcome.ranking)
        if settings.sensitivity and not ranking and outcome.best.nodes:
            ranking = rank(evaluator, outcome.best.recipe, on_progress)
    seconds = time.perf_counter() - started
    made = quantizer.quantize(outcome.best.recipe)
    said = _about(outcome, ranking, evaluator, settings)
    if outcome.met or settings.whole:  # what misses the gate with every node in integers fails the comparison
        facts = _facts(quantizer, made, output, said, left=outcome.left)
    else:
        (output.parent / KEPT).mkdir()
        best = output.parent / KEPT / best_path(output).name
        facts = {**_facts(quantizer, made, best, said, left=outcome.left), "kept": f"{KEPT}/{best.name}"}
    facts["metrics"]["int8_macs_share"] = outcome.best.macs_share
    facts["metrics"]["search"] = _metrics(outcome, settings, evaluator, seconds)
    if ranking:
        facts["metrics"]["sensitivity"] = [row.as_dict() for row in ranking]
    return facts


def add_sensitivity(
    facts: dict[str, Any], quantizer: StaticQuantizer, output: Path, settings: Settings, on_progress: OnProgress
) -> None:
    """Puts the ranking of the nodes into the facts of an int8 job."""
    random = facts_of(quantizer.source).stochastic
    if random:
        facts["findings"].append(_not_measured(random[0]).as_dict())
        return
    with io.scratch_folder(output.parent) as scratch:
        evaluator = Evaluator(quantizer, settings, Path(scratch), on_progress)
        ranking = rank(evaluator, plain_recipe(settings), on_progress)
    facts["metrics"]["sensitivity"] = [row.as_dict() for row in ranking]


def _facts(
    quantizer: StaticQuantizer, made: Quantized, path: Path, said: Sequence[Finding], left: Sequence[str] = ()
) -> dict[str, Any]:
    decided = set(left)
    about = [
        finding
        for finding in quantizer.about(made)
        if not (finding.code == "DK355" and finding.node in decided)  # the search has its own reason
    ]
    # By what it computes in, as the file alone would say it: a model with integer nodes is held to the int8 row.
    precision = "int8" if made.nodes else "fp32"
    facts = written(made.model, path, precision, [*about, *said])
    facts["metrics"] |= {
        "calibration": quantizer.measured.metrics,
        **counts(made.nodes, [*made.plan.left]),
    }
    return facts


def _metrics(outcome: Outcome, settings: Settings, evaluator: Evaluator, seconds: float) -> dict[str, Any]:
    recipe = outcome.best.recipe
    budget = settings.accuracy or {}
    return {
        "met": outcome.met,
        "recipe": {**dataclasses.asdict(recipe), "exclude": list(recipe.exclude), "method": _method(recipe, settings)},
        "best": {**outcome.best.as_dict(), "error": None if outcome.best.drop is None else outcome.best.drop.error},
        "left_in_float": list(outcome.left),
        "budget": {
            "min_sqnr_db": evaluator.gate.min_sqnr_db,
            "max_drop": budget.get("max_drop"),
            "metric": budget.get("metric"),
        },
        "samples": evaluator.samples,
        "evaluations": outcome.evaluations,
        "seconds": round(seconds, 2),
        "tried": list(outcome.tried),
    }


def _method(recipe: Recipe, settings: Settings) -> str:
    return recipe.method or settings.method


def _not_measured(node: str) -> Finding:
    text = f"nothing was searched or ranked: the model is stochastic ({node}), and two runs differ"
    return warning("DK399", text, hint="fix the seed attribute, and candidates can be compared")


def _about(outcome: Outcome, ranking: Sequence[Sensitivity], evaluator: Evaluator, settings: Settings) -> list[Finding]:
    best = outcome.best
    if not outcome.plain.nodes:
        return []
    if outcome.met:
        said = [_result(outcome, settings)]
    else:
        said = [] if settings.whole else [_over_budget(outcome, settings, evaluator)]
    rows = {row.node: row for row in ranking}
    said += [_left(rows.get(name), name, evaluator) for name in outcome.left]
    limit = (settings.accuracy or {}).get("max_drop")
    if outcome.met and best.drop is not None and limit is not None and best.drop.at_most > limit:
        text = (
            f"the drop of {best.drop.value:.3g} on {best.drop.samples} samples is within {limit:g}, and by its "
            f"standard error of {best.drop.error:.2g} it may be up to {best.drop.at_most:.2g} on others (95 %)"
        )
        said.append(note("DK398", text, hint="more labelled samples for --eval narrow that down"))
    return said


def _result(outcome: Outcome, settings: Settings) -> Finding:
    best, recipe = outcome.best, outcome.best.recipe
    added = [f"SmoothQuant {recipe.smooth_quant:g}"] if recipe.smooth_quant is not None else []
    added += ["bias correction"] if recipe.bias_correction else []
    how = ", ".join([f"method {_method(recipe, settings)}", *added])
    left = f"{len(outcome.left)} nodes left in float" if outcome.left else "no node left in float"
    count = f"{outcome.evaluations} evaluation{'' if outcome.evaluations == 1 else 's'}"
    text = f"searched with {count}: {best.macs_share:.1%} of the MACs in INT8, {how}, {left}"
    return note("DK395", text)


def _over_budget(outcome: Outcome, settings: Settings, evaluator: Evaluator) -> Finding:
    best = outcome.best
    limit = (settings.accuracy or {}).get("max_drop")
    wanted = f"SQNR of {evaluator.gate.min_sqnr_db:g} dB ({MARGIN_DB:g} above the gate)"
    if limit is not None:
        wanted += f" and a drop of at most {limit:g}"
    level = in_db(best.sqnr_db)
    reached = "outputs that cannot be compared" if level is None else f"{level:g} dB"
    if best.drop is not None:
        reached += f" and a drop of {best.drop.value:.3g}"
    text = (
        f"no model with INT8 nodes keeps to an {wanted}; the best of {outcome.evaluations} has {reached} with "
        f"{best.macs_share:.1%} of the MACs in INT8"
    )
    hint = "it is kept as *.best.onnx beside the output; more calibration samples, a larger --max-drop, or fp16"
    return failure("DK396", text, hint=hint)


def _left(row: Sensitivity | None, name: str, evaluator: Evaluator) -> Finding:
    if row is None:
        cost = "the whole is over the budget with it"
    elif in_db(row.alone_db) is None:
        cost = "alone it makes outputs that cannot be compared"
    else:
        cost = f"alone it costs so much that {in_db(row.alone_db):g} dB are left"
    share = evaluator.share((name,))
    text = f"{evaluator.ops[name]} {name!r} is left in float by the search: {cost}, for {share:.1%} of the MACs"
    return note("DK397", text, node=name, op=evaluator.ops[name])
