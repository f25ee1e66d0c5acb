"""`deploykit check --fix`: rewrites what the named targets refuse; and what a plain check says about that."""

from __future__ import annotations

import dataclasses
import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from deploykit import graph, io
from deploykit.errors import UsageError
from deploykit.progress import OnProgress, silent
from deploykit.report import Finding, Report, note

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import onnx_ir as ir

    from deploykit.artifact import TensorSpec
    from deploykit.opsupport.checker import TargetSummary

    Bounds = Mapping[str, Sequence[int | None]]

REFUSED_NODE = "DK201"
NEEDS_BOUNDS = "DK520"
BAD_INTERFACE = "DK529"
# Suggested where nothing is known of a dimension; the user replaces it.
_USUAL_LARGEST = 64


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What a check was asked for, as its commands have to repeat it. targets: as named, `name` or `name@version`."""

    model: Path
    targets: Sequence[str]
    dims: Bounds

    def command(self, target: str, *more: str, dims: Bounds | None = None) -> str:
        """`deploykit check MODEL --target T ...` as a shell takes it."""
        bounds = self.dims if dims is None else dims
        words = ["deploykit", "check", str(self.model), "--target", target, *more]
        for name, (low, high) in bounds.items():
            words += ["--dim", f"{name}={low or 1}..{'' if high is None else high}"]
        return shlex.join(words)

    def fixing(self, target: str) -> str:
        """The command that fixes the model for a target."""
        return self.command(target, "--fix", "-o", str(self.model.with_name(f"{self.model.stem}-fixed.onnx")))


def check_usage(*, fix: bool, output: str | Path | None, dry_run: bool, force: bool) -> Path | None:
    """The path to write, checked before any work; None when nothing is to be written.

    Raises UsageError (DK235) for options that do not go together, and OutputError as `io.check_output` does.
    """
    if not fix and (output is not None or dry_run):
        given = "--dry-run" if output is None else "-o"
        raise UsageError(f"{given} needs --fix: a check writes no model", code="DK235", hint="--fix -o fixed.onnx")
    if fix and output is None and not dry_run:
        raise UsageError("--fix needs to know where to write", code="DK235", hint="-o fixed.onnx, or --dry-run")
    if output is None or dry_run:
        return None
    return io.check_output(Path(output), force=force, suffix=".onnx")


def fix_model(
    wanted: Wanted,
    ask: Callable[[Path], list[TargetSummary]],
    summaries: Sequence[TargetSummary],
    *,
    output: Path | None,
    force: bool = False,
    seed: int = 0,
    on_progress: OnProgress = silent,
) -> tuple[Report, Sequence[TargetSummary]]:
    """Rewrites the model until its targets take it, or nothing more is gained; what the targets say of the result.

    ask: all targets' answers about a file. summaries: those about the model as it is. output: None for a dry run.
    Returns a report with metrics "fix", and with the artifact when something was gained or nothing was to be done.
    """
    from deploykit.optimizers.fix import Fixing, FixStage, findings_of, metrics_of
    from deploykit.stage import run_stage

    fixing = Fixing(ask, summaries, wanted.dims, seed)
    if output is None:
        with io.scratch_folder() as folder:
            outcome = fixing.search(wanted.model, Path(folder), on_progress)
        report = Report("check", findings=findings_of(outcome, done=False), metrics={"fix": metrics_of(outcome.state)})
        return report, outcome.state.summaries
    stage = FixStage(fixing, {"targets": list(wanted.targets), "dims": dict(wanted.dims)})
    report = run_stage(stage, {"model": graph.describe(wanted.model)}, output, force=force, on_progress=on_progress)
    report.command = "check"
    if stage.outcome is None or not report.artifacts:
        return report, summaries
    return report, stage.outcome.state.summaries


def next_steps(wanted: Wanted, output: Path, summaries: Sequence[TargetSummary]) -> list[Finding]:
    """For each target that runs the result: the command that converts it, with the profiles that it needs."""
    inputs, _ = graph.interface(graph.load(output))
    found = []
    for name, summary in zip(wanted.targets, summaries, strict=True):
        target = summary.target
        if not summary.runs or target.converter is None:
            continue
        words = ["deploykit", "convert", str(output), "--to", name, "-o", str(output.with_suffix(target.suffix))]
        text = f"{target.title} {summary.verdict}"
        if any(finding.code == NEEDS_BOUNDS for finding in summary.findings):
            for spec in inputs:
                profile = suggested_profile(spec, wanted.dims)
                words += ["--profile", f"{spec.name}={profile}"] if profile else []
            text += "; it needs the smallest, usual and largest shape of each input: put in the sizes that you will use"
        if target.suffix and target.suffix != ".onnx":
            found.append(note("DK242", text, target=target.name, hint=f"`{shlex.join(words)}`"))
    return found


def suggested_profile(spec: TensorSpec, dims: Bounds) -> str:
    """`1x3x224x224:8x3x224x224:64x3x224x224` for an input with dynamic dimensions; "" for another one."""
    if spec.shape is None or not any(isinstance(size, str) for size in spec.shape):
        return ""
    ranges = [(s, s) if isinstance(s, int) else (low_of(s, dims), high_of(s, dims)) for s in spec.shape]
    usual = [min(max(round(math.sqrt(low * high)), low), high) for low, high in ranges]
    shapes = ([low for low, _ in ranges], usual, [high for _, high in ranges])
    return ":".join("x".join(map(str, shape)) for shape in shapes)


def low_of(symbol: str, dims: Bounds) -> int:
    """The smallest size of a dimension, 1 where it has no bound."""
    return (dims[symbol][0] if symbol in dims else None) or 1


def high_of(symbol: str, dims: Bounds) -> int:
    """The largest size of a dimension, or one to begin with."""
    given = dims[symbol][1] if symbol in dims else None
    return given if given is not None else max(_USUAL_LARGEST, low_of(symbol, dims))


class Hints:
    """What a plain check says about nodes that a rewrite may help, and about bounds that a target needs.

    The model is read when the first one is asked for; nothing is tried.
    """

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._model: ir.Model | None = None
        self._nodes: dict[str, ir.Node] = {}
        self._titles: dict[str, list[str]] = {}

    def improved(self, findings: Iterable[Finding], target: str) -> list[Finding]:
        """The findings of a target (as named), with the commands that may solve them before its own remedies."""
        return [dataclasses.replace(finding, hint=self._hint(finding, target)) for finding in findings]

    def _hint(self, finding: Finding, target: str) -> str:
        if finding.code == NEEDS_BOUNDS:
            return self._bounds(target) or finding.hint
        if finding.severity == "note" or finding.code not in (REFUSED_NODE, BAD_INTERFACE):
            return finding.hint
        self._load()
        if finding.code == REFUSED_NODE:
            node = self._nodes.get(finding.node or "")
            return self._with_fix([node] if node is not None else [], target, finding.hint, interface=False)
        touching = [
            node
            for node in self._nodes.values()
            if any(value is not None and value.name == finding.tensor for value in (*node.inputs, *node.outputs))
        ]
        return self._with_fix(touching, target, finding.hint, interface=True)

    def _with_fix(self, nodes: Iterable[ir.Node], target: str, remedy: str, *, interface: bool) -> str:
        titles = dict.fromkeys(title for node in nodes for title in self._rewrites(node, interface=interface))
        if not titles:
            return remedy
        told = f"`{self._wanted.fixing(target)}` may solve it ({'; or '.join(titles)})"
        return f"{told}; otherwise: {remedy}" if remedy else told

    def _rewrites(self, node: ir.Node, *, interface: bool) -> list[str]:
        """Titles of the rewrites that apply to a node, each asked once."""
        from deploykit.optimizers.rewrites import all_rewrites

        key = f"{interface} {node.name}"
        if key not in self._titles and self._model is not None:
            fitting = [r for r in all_rewrites() if interface or not r.interface]
            self._titles[key] = [r.title for r in fitting if r.applies(node, self._model)]
        return self._titles.get(key, [])

    def _bounds(self, target: str) -> str:
        """The check with bounds for every dimension that has none."""
        self._load()
        if self._model is None:
            return ""
        inputs, _ = graph.interface(self._model)
        symbols = dict.fromkeys(s for spec in inputs for s in spec.shape or () if isinstance(s, str))
        if not symbols:
            return ""
        given = self._wanted.dims
        dims = {**given, **{symbol: (low_of(symbol, given), high_of(symbol, given)) for symbol in symbols}}
        return f"`{self._wanted.command(target, dims=dims)}` (put in the largest sizes that you will use)"

    def _load(self) -> None:
        if self._model is None:
            self._model = graph.infer_shapes(graph.name_nodes(graph.load(self._wanted.model)))
            self._nodes = {node.name or "": node for node in graph.all_nodes(self._model)}
