"""The fix stage: a model rewritten until its targets take it, proven equal step by step and as a whole."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit import graph
from deploykit.errors import DeploykitError, MissingDependencyError
from deploykit.io import scratch_folder
from deploykit.isolation import run_isolated
from deploykit.lazy import versions_of
from deploykit.opsupport.verdict import Status
from deploykit.optimizers.fix_search import ASKS, Outcome, Search
from deploykit.parity import row_for
from deploykit.progress import OnProgress, Progress, silent
from deploykit.report import Finding, failure, note, warning
from deploykit.stage import Product, Stage, Verification

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.artifact import Artifact
    from deploykit.opsupport.checker import TargetSummary
    from deploykit.optimizers.fix_search import Ask
    from deploykit.optimizers.fix_state import State, Step
    from deploykit.optimizers.rewriting import Change

# The comparison needs onnxruntime and the standard's own evaluator, and onnxruntime imports torch when it can.
_BLOCKED = ("torch", "tensorflow", "torchvision")
_TIMEOUT_SECONDS = 600.0
_LISTED = 6


class Fixing:
    """What a fix needs to know: how targets are asked, and how results are compared.

    ask: all targets' answers about a file. summaries: those about the model as it is. dims: bounds by symbol, over
    which outputs are compared.
    """

    def __init__(
        self,
        ask: Ask,
        summaries: Sequence[TargetSummary],
        dims: Mapping[str, Sequence[int | None]] | None = None,
        seed: int = 0,
    ) -> None:
        self.ask = ask
        self.summaries = tuple(summaries)
        self.dims = dict(dims or {})
        self.seed = seed

    def search(self, model: Path, folder: Path, on_progress: OnProgress = silent) -> Outcome:
        """Rewrites copies of the model in `folder` as long as that gains something."""
        return Search(self.ask, self._difference, folder, on_progress).run(model, self.summaries)

    def proof(
        self, before: Path, after: Path, changes: Sequence[Change], *, retyped: bool, on_progress: OnProgress = silent
    ) -> dict[str, Any]:
        """The comparison of two models in its worker; the loosest bound of the changes is the tolerance."""
        bound = "fp32"
        for change in changes:
            bound = row_for(bound, change.bound)
        result: dict[str, Any] = run_isolated(
            "compare-fix",
            "deploykit.optimizers.fix_proof:prove_job",
            {
                "original": str(before),
                "candidate": str(after),
                "bound": bound,
                "requantized": sorted({name for change in changes for name in change.removed}),
                "retyped": retyped,
                "dims": self.dims,
                "seed": self.seed,
            },
            block=_BLOCKED,
            timeout=_TIMEOUT_SECONDS,
            on_progress=on_progress,
        )
        return result

    def _difference(self, before: Path, after: Path, steps: Sequence[Step]) -> str:
        """Why the models are not equal; empty when they are."""
        changes = [change for step in steps for change in step.changes]
        try:
            result = self.proof(before, after, changes, retyped=any(step.rewrite.interface for step in steps))
        except MissingDependencyError:
            raise
        except DeploykitError as problem:
            return f"it does not run: {problem.message[:300]}"
        found = [Finding.from_dict(facts) for facts in result["findings"]]
        wrong = [finding.message for finding in found if finding.severity == "error"]
        if not wrong and not result["compared"]:
            wrong = ["nothing proves it", *(finding.message for finding in found)]
        return "; ".join(wrong)[:500]


class FixStage(Stage):
    """ONNX to an equal ONNX that its targets take."""

    name = "fix"

    def __init__(self, fixing: Fixing, options: Mapping[str, Any]) -> None:
        """options: what was asked, for the manifest."""
        self.fixing = fixing
        self.outcome: Outcome | None = None
        self._options = dict(options)

    @property
    def options(self) -> dict[str, Any]:
        """As given."""
        return {**self._options, "seed": self.fixing.seed}

    def run(self, inputs: Mapping[str, Artifact], output: Path, on_progress: OnProgress) -> Product:
        """Writes the rewritten model at `output`; the original where it runs as it is. Nothing gained is a failure."""
        original = inputs["model"]
        with scratch_folder() as folder:
            outcome = self.outcome = self.fixing.search(original.path, Path(folder), on_progress)
            state = outcome.state
            findings = findings_of(outcome, done=True)
            if not state.steps and state.refused:
                return Product("onnx", findings=findings, metrics={"fix": metrics_of(state)})
            files = _copied(state.path, output)
        described = graph.describe(output)
        return Product(
            "onnx",
            inputs=described.inputs,
            outputs=described.outputs,
            precision=described.precision,
            target=original.target,
            opset=described.opset,
            files=files,
            tool_versions=versions_of("onnx", "onnxruntime"),
            findings=findings,
            metrics={"fix": metrics_of(state)},
        )

    def ensures(self, inputs: Mapping[str, Artifact], made: Artifact, on_progress: OnProgress) -> Verification:
        """Compares what was written with the original, over all steps: each of them has been proven by itself."""
        steps = self.outcome.state.steps if self.outcome is not None else ()
        if not steps:
            return Verification()
        on_progress(Progress("comparing", made.path.name))
        result = self.fixing.proof(
            inputs["model"].path,
            made.path,
            [change for step in steps for change in step.changes],
            retyped=any(step.rewrite.interface for step in steps),
            on_progress=on_progress,
        )
        found = [Finding.from_dict(facts) for facts in result["findings"]]
        found += retyped(result["interface"])
        if not result["compared"] and not any(finding.severity == "error" for finding in found):
            found.append(
                failure("DK241", "the whole result could not be compared with the original: nothing proves it")
            )
        metrics = {"parity": {"outputs": result["outputs"], "samples": result["samples"]}}
        return Verification(found, metrics, "real" if result["samples"] else "none")


def retyped(changes: Sequence[Sequence[str]]) -> list[Finding]:
    """A warning for each input or output of another dtype than before: [name, before, after]."""
    return [
        warning(
            "DK238",
            f"{name!r} was {before} and is {after} now: a target cannot hold {before} there",
            tensor=name,
            hint=f"what calls the model has to give and take {name!r} as {after}",
        )
        for name, before, after in changes
    ]


def findings_of(outcome: Outcome, *, done: bool) -> list[Finding]:
    """What was done (or would be), what was dropped and why. done: False for a dry run."""
    state = outcome.state
    found = [_told(step, state, done=done) for step in state.steps]
    if not state.steps and not state.refused:
        kept = "the model is kept as it is" if done else "there is nothing to do"
        found.append(note("DK243", f"{_content(state)}: {kept}"))
    if not state.steps and state.refused:
        text = f"no rewrite makes a named target take more of the model{': nothing is written' if done else ''}"
        found.append(failure("DK240", text, hint="the findings of the check say what else can be done"))
    for rewrite, nodes, why in outcome.dropped:
        named = ", ".join(nodes[:_LISTED]) + (f" and {len(nodes) - _LISTED} more" if len(nodes) > _LISTED else "")
        found.append(note("DK237", f"{rewrite.name} is not used on {named}: {why}", node=nodes[0] if nodes else None))
    if outcome.exhausted:
        text = f"the search ended after {ASKS} rewritten models: more may be possible"
        found.append(warning("DK239", text, hint="run it again on the result, which is closer"))
    return found


def _content(state: State) -> str:
    """Why nothing is to be done about a model that no target refuses."""
    unknown = {n.node for s in state.summaries if s.spoke for n in s.nodes if n.verdict.status is Status.UNKNOWN}
    if state.own:
        return "no target refuses a node, and no rewrite spares another engine what a target leaves to it"
    if unknown:
        return f"no target refuses a node, though nobody knows of {len(unknown)}, and only refusals are rewritten"
    return "every target that could be asked takes every node"


def _told(step: Step, state: State, *, done: bool) -> Finding:
    """One rewrite in a sentence: what went, what came, and what each target says of what came."""
    went, came = (_operators(step, names) for names in (step.removed, step.added))
    if went and came:
        text = f"{went} became {came}" if done else f"{went} would become {came}"
    elif went or came:
        text = f"{went} {'went' if done else 'would go'}" if went else f"{came} {'came' if done else 'would come'}"
    else:
        more = f" and {len(step.changes) - 1} more" if len(step.changes) > 1 else ""
        text = step.changes[0].text + more
    said = {label: _says(counts, step) for label, counts in _targets(step, state).items()}
    if len(said) > 1 and len(set(said.values())) == 1:
        said = {"each target": next(iter(said.values()))}
    each = ", ".join(f"{who} {what}" for who, what in said.items())
    first = (step.removed or step.added or [""])[0]
    told = f"{step.rewrite.name} ({step.rewrite.title}): {text}; {each}"
    return note("DK236", told, node=first or None, op=step.operators.get(first))


def _operators(step: Step, names: Sequence[str]) -> str:
    counts = Counter(step.operators.get(name, "") or "node" for name in names)
    return ", ".join(f"{count} {operator}" for operator, count in counts.most_common())


def _says(counts: Mapping[Status, int], step: Step) -> str:
    refused, unknown = counts[Status.UNSUPPORTED], counts[Status.UNKNOWN]
    if refused:
        return f"does not take {refused} of them"
    if unknown:
        return f"says nothing of {unknown} of them"
    return "takes what came" if step.added else "takes it"


def _targets(step: Step, state: State) -> dict[str, dict[Status, int]]:
    """For each target: verdicts on the nodes that came with the step and are still there."""
    added = set(step.added)
    return {
        label: {status: sum(node.node in added for node in summary.of(status)) for status in Status}
        for label, summary in state.labelled
        if summary.spoke
    }


def _verdicts(counts: Mapping[Status, int]) -> dict[str, Any]:
    passes = not counts[Status.UNSUPPORTED] and not counts[Status.UNKNOWN]
    named: dict[str, Any] = {str(status): count for status, count in counts.items()}
    return {**named, "passes": passes}


def metrics_of(state: State) -> dict[str, Any]:
    """`metrics.fix` of the JSON contract."""
    rewrites = []
    for step in state.steps:
        targets = _targets(step, state)
        rewrites.append(
            {
                "name": step.rewrite.name,
                "title": step.rewrite.title,
                "nodes_removed": step.removed,
                "nodes_added": step.added,
                "operators_removed": dict(Counter(step.operators.get(name, "") for name in step.removed)),
                "operators_added": dict(Counter(step.operators.get(name, "") for name in step.added)),
                "changes": [change.text for change in step.changes],
                "targets": {name: _verdicts(counts) for name, counts in targets.items()},
            }
        )
    left = [
        {
            "target": target,
            "node": name if kind == "node" else None,
            "tensor": name if kind != "node" and name else None,
            "reason": reason,
        }
        for (target, kind, name), reason in state.own.items()
    ]
    return {"rewrites": rewrites, "left": left}


def _copied(chosen: Path, output: Path) -> tuple[str, ...]:
    """Writes the model at `output`; with external data it is saved anew, so that the data's name fits."""
    if len(graph.describe(chosen).files) <= 1:
        shutil.copyfile(chosen, output)
        return (output.name,)
    return graph.save(graph.load(chosen), output)
