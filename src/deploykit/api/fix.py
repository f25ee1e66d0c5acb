"""`deploykit check --fix`: rewrites what the named targets refuse, and says what comes next."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from deploykit import graph, io
from deploykit.api.hints import NEEDS_BOUNDS, Wanted, suggested_profile
from deploykit.data.request import dim_options
from deploykit.errors import UsageError
from deploykit.progress import OnProgress, silent
from deploykit.report import Finding, Report, note

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from deploykit.opsupport.checker import TargetSummary


def check_usage(
    *, fix: bool, output: str | Path | None, dry_run: bool, force: bool, besides: str | Path | None = None
) -> Path | None:
    """The path to write, checked before any work; None when nothing is to be written.

    besides: a folder that is written too.
    Raises UsageError (DK235) for options that do not go together, and OutputError as `io.check_output` does.
    """
    if not fix and (output is not None or dry_run):
        given = "--dry-run" if output is None else "-o"
        raise UsageError(f"{given} needs --fix: a check writes no model", code="DK235", hint="--fix -o fixed.onnx")
    if fix and output is None and not dry_run:
        raise UsageError("--fix needs to know where to write", code="DK235", hint="-o fixed.onnx, or --dry-run")
    if output is None or dry_run:
        return None
    if besides is not None and Path(besides).absolute() == Path(output).absolute():
        raise UsageError(f"-o and --save-nodes both name {output}", code="DK235", hint="--save-nodes takes a folder")
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
        words += dim_options(wanted.dims)
        words += wanted.extensions(name)
        text = f"{target.title}: the result {summary.verdict}"
        if any(finding.code == NEEDS_BOUNDS for finding in summary.findings):
            for spec in inputs:
                profile = suggested_profile(spec, wanted.dims)
                words += ["--profile", f"{spec.name}={profile}"] if profile else []
            text += "; it needs the smallest, usual and largest shape of each input: put in the sizes that you will use"
        if target.suffix and target.suffix != ".onnx":
            found.append(note("DK242", text, target=target.name, hint=f"`{shlex.join(words)}`"))
    return found
