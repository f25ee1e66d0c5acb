"""run: the whole chain, step by step, reusing what did not change and going on after a failure."""

from __future__ import annotations

import contextlib
import importlib
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit import io
from deploykit.errors import DeploykitError, ExitCode, UsageError
from deploykit.isolation import workers
from deploykit.lazy import versions_of
from deploykit.pipeline.cache import Cache, Entry, machine
from deploykit.pipeline.config import Config, load_config
from deploykit.pipeline.outcome import Outcome, Status
from deploykit.pipeline.output_folder import CACHE, check_folder, held
from deploykit.pipeline.plan import STAGES, Step, make_plan
from deploykit.pipeline.shorthand import config_from_options, decided, libraries_for, narrowed, to_yaml
from deploykit.pipeline.summary import summarize, write_reports
from deploykit.pipeline.warming import warm
from deploykit.progress import OnProgress, Progress, silent
from deploykit.report import Report, failure, merge_exit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.api.extensions import CustomOps


def run(
    source: str | Path,
    *,
    to: Sequence[str] = (),
    precision: Sequence[str] = (),
    inputs: Sequence[str] = (),
    dims: Sequence[str] = (),
    sample: str | Path | None = None,
    calib: str | None = None,
    eval: str | None = None,
    metric: str | None = None,
    weights: str | None = None,
    args: Mapping[str, Any] | None = None,
    custom_ops: CustomOps = None,
    output: str | Path | None = None,
    only: Sequence[str] = (),
    no_cache: bool = False,
    dry_run: bool = False,
    write_config: str | Path | None = None,
    force: bool = False,
    seed: int = 0,
    on_progress: OnProgress = silent,
) -> Report:
    """Runs the chain of a `deploykit.yaml`, or of a model and options; see docs/configuration.md.

    source: a configuration file, of which `to` and `precision` choose a part, or anything that `export` takes together
    with `to`; inputs, dims, sample, calib, eval, metric, weights, args, seed and custom_ops (extension libraries)
    belong to the latter.
    only: stages to run, with what they need. no_cache: redo everything. dry_run: only say what would be done.
    write_config: where to write a configuration that names the exporter, engine and float nodes that were chosen.
    Returns a report with one row per artifact; raises the DeploykitError of the configuration or of the export.
    """
    started = time.perf_counter()
    options = {
        "to": to,
        "precision": precision,
        "inputs": inputs,
        "dims": dims,
        "sample": sample,
        "calib": calib,
        "eval": eval,
        "metric": metric,
        "weights": weights,
        "args": args,
        "custom_ops": custom_ops,
        "seed": seed,
    }
    config, folder = _configuration(source, options)
    for stage in only:
        if stage not in STAGES:
            raise UsageError(f"there is no stage {stage!r}", hint=f"stages: {', '.join(STAGES)}")
    out = Path(output) if output is not None else folder / config.output
    if write_config is not None:
        io.check_output(Path(write_config), force=force)
    with workers():  # the same data may be asked for several times
        steps = wanted(make_plan(config, folder), only)
    if not dry_run:
        check_folder(out, force=force)
    report = Report(command="run")
    with contextlib.nullcontext() if dry_run else held(out):
        engine = Engine(Cache(out / CACHE, read=not no_cache), out, on_progress)
        with workers():
            outcomes = engine.run(steps, dry_run=dry_run)
        if dry_run:
            report.metrics["steps"] = [{"step": o.step.key, "status": o.status, "reason": o.reason} for o in outcomes]
            report.seconds = time.perf_counter() - started
            return report
        summarize(report, config, outcomes)
        report.forced_exit = merge_exit([*(int(outcome.exit_code) for outcome in outcomes), int(report.failed)])
        report.seconds = time.perf_counter() - started
        write_reports(report, out)
    if write_config is not None:
        io.write_text(Path(write_config), to_yaml(decided(config, outcomes), Path(write_config), folder), force=force)
    return report


# Options that describe a source, and the keys that stand for them in a configuration.
_KEYS = {
    "inputs": ("--input", "inputs"),
    "dims": ("--dim", "dims"),
    "sample": ("--sample", "export.sample"),
    "calib": ("--calib", "quantize"),
    "eval": ("--eval", "evaluate.data"),
    "metric": ("--metric", "evaluate.metric"),
    "weights": ("--weights", "weights"),
    "args": ("--arg", "args"),
    "custom_ops": ("--custom-ops", "custom_ops"),
    "seed": ("--seed", "seed"),
}


def _configuration(source: str | Path, options: Mapping[str, Any]) -> tuple[Config, Path]:
    text = str(source)
    if text.endswith((".yaml", ".yml")):
        path = Path(text)
        for name, (option, key) in _KEYS.items():
            if options[name]:
                raise UsageError(
                    f"{option} describes a model source, and {path.name} is a configuration",
                    code="DK807",
                    hint=f"set `{key}` in {path}",
                )
        config = load_config(path)
        libraries_for({name: path.parent / file for name, file in config.custom_ops.items()}, config.targets)
        return narrowed(config, options["to"], options["precision"]), path.parent
    return config_from_options(text, options), Path()


def wanted(steps: list[Step], only: Sequence[str]) -> list[Step]:
    """The steps of the named stages and everything they need; all where no stage is named."""
    if not only:
        return steps
    by_key = {step.key: step for step in steps}
    needed: set[str] = set()

    def need(step: Step) -> None:
        if step.key not in needed:
            needed.add(step.key)
            for key in (*step.subjects, *step.references.values()):
                need(by_key[key])

    for step in steps:
        if step.stage in only:
            need(step)
    return [step for step in steps if step.key in needed]


class Engine:
    """Runs steps in order over a cache; a failed step skips what needs it, not the rest."""

    def __init__(self, cache: Cache, out: Path, on_progress: OnProgress = silent) -> None:
        """out: where artifacts are published."""
        self.cache = cache
        self.out = out
        self.on_progress = on_progress
        self.outcomes: dict[str, Outcome] = {}
        self.steps: Sequence[Step] = ()

    def run(self, steps: Sequence[Step], *, dry_run: bool = False) -> list[Outcome]:
        """The outcome of every step, in order. The first step's error is raised: nothing can follow it."""
        self.steps = steps
        for index, step in enumerate(steps):
            self.on_progress(Progress("run", step.key, index, len(steps)))
            self.outcomes[step.key] = self._step(step, dry_run=dry_run)
        self.on_progress(Progress("run", "", len(steps), len(steps)))
        return list(self.outcomes.values())

    def _step(self, step: Step, *, dry_run: bool) -> Outcome:
        subjects = step.subjects
        if step.stage == "bench":
            subjects = tuple(key for key in subjects if (o := self.outcomes.get(key)) and o.path)
        reason = self._blocked(step, subjects)
        if reason:
            return Outcome(step, "planned" if dry_run else "skipped", reason=reason)
        if dry_run and not all(self.outcomes[key].report for key in self._needs(step)):
            return Outcome(step, "planned", reason="its input is not made yet")
        key = self.cache.key(self._facts(step, subjects))
        entry = self.cache.find(step.stage, key)
        if entry is not None:
            return self._settled(step, "cached", entry, subjects)
        if dry_run:
            return Outcome(step, "planned", reason="new or changed")
        return self._execute(step, subjects, key)

    def _needs(self, step: Step) -> list[str]:
        return [key for key in (*step.subjects, *step.references.values()) if key in self.outcomes]

    def _blocked(self, step: Step, subjects: Sequence[str]) -> str:
        """Why the step cannot run; empty when it can."""
        if step.stage == "bench" and not subjects:
            return "there is nothing to measure"
        for key in (*subjects, *step.references.values()):
            found = self.outcomes[key]
            if not found.passed and found.status != "planned":
                return f"{key}: {found.reason or 'failed'}" if found.status == "skipped" else f"{key} failed"
        for key in step.after:
            found_after = self.outcomes.get(key)
            if found_after and found_after.report and step.target:
                refused = [f for f in found_after.report.findings if f.severity == "error" and f.target == step.target]
                if refused:
                    return f"check: {refused[0].message}"
        return ""

    def _facts(self, step: Step, subjects: Sequence[str]) -> dict[str, Any]:
        """Everything that the result depends on."""
        return {
            "function": step.function,
            "identity": step.identity,
            "output": step.output,
            "subjects": [self._digest(key) for key in subjects],
            "references": {name: self._digest(key) for name, key in step.references.items()},
            "versions": versions_of("numpy", *step.distributions),
            "machine": machine() if step.stage == "bench" else None,
        }

    def _digest(self, key: str) -> str:
        report = self.outcomes[key].report
        return report.artifact.sha256 if report and report.artifact else ""

    def _execute(self, step: Step, subjects: Sequence[str], key: str) -> Outcome:
        started = time.perf_counter()
        outcome = Outcome(step, "failed")
        if step.source is not None:
            warm(self.steps)
        try:
            with self.cache.filling(step.stage, key) as folder:
                report = self._call(step, subjects, folder)
                if step.stage in ("check", "bench", "evaluate") or not report.failed:
                    entry = self.cache.store(step.stage, key, folder, report, _depends(report))
                    outcome = self._settled(step, "done", entry, subjects)
                outcome.report = report if outcome.report is None else outcome.report
                outcome.exit_code = _exit_code(step, report)
        except DeploykitError as problem:
            if step.source is not None:
                raise  # without the exported model nothing can follow: the command's own error
            outcome.report = Report(command=step.stage, error=problem)
            outcome.exit_code = problem.exit_code
            outcome.reason = problem.message
        except Exception as problem:  # a bug in one step must not lose the other targets' results
            found = failure("DK821", f"{step.key}: {type(problem).__name__}: {problem}\n{traceback.format_exc()}")
            outcome.report = Report(command=step.stage, findings=[found])
            outcome.exit_code = ExitCode.BUG
            outcome.reason = str(problem)
        outcome.seconds = time.perf_counter() - started
        return outcome

    def _call(self, step: Step, subjects: Sequence[str], folder: Path) -> Report:
        module, _, name = step.function.partition(":")
        function = getattr(importlib.import_module(module), name)
        arguments = dict(step.options)
        for argument, key in step.references.items():
            arguments[argument] = self.outcomes[key].path
        if step.output is not None:
            arguments["output"] = folder / step.output
        positional: list[Any] = [step.source] if step.source is not None else [self.outcomes[k].path for k in subjects]
        report: Report = function(*positional, **arguments, on_progress=self.on_progress)
        if report.error is not None:
            raise report.error
        return report

    def _settled(self, step: Step, status: Status, entry: Entry, subjects: Sequence[str]) -> Outcome:
        """The outcome for a stored entry, its artifact published."""
        report = entry.report
        outcome = Outcome(step, status, report, exit_code=_exit_code(step, report), subjects=tuple(subjects))
        if report.artifact is not None:
            outcome.path = report.artifact.path
            if step.publish is not None:
                final = (self.out / step.publish).with_name(report.artifact.path.name)  # a bundle is no `m.engine`
                outcome.published = self._publish(report.artifact.path, entry, final)
        return outcome

    def _publish(self, stored: Path, entry: Entry, final: Path) -> Path:
        """Copies the artifact with its companions and manifest out of the store, unless it is there already."""
        names = list(entry.facts["files"])
        if all(
            (final.parent / name).exists() and io.digest([final.parent / name]) == entry.facts["files"][name]
            for name in names
        ):
            return final
        final.parent.mkdir(parents=True, exist_ok=True)
        with io.staged(final, force=True) as staging:
            for name in names:
                io.copy_entry(stored.parent / name, staging.parent / name)
        return final


def _exit_code(step: Step, report: Report) -> ExitCode:
    """The report's exit code; that nothing could be measured here is no failure of the chain."""
    if step.stage == "bench" and report.exit_code == ExitCode.UNAVAILABLE:
        return ExitCode.OK
    return report.exit_code


def _depends(report: Report) -> dict[str, str]:
    """Digests of further files that the step read (modules that a PyTorch source imports)."""
    found = report.metrics.get("source_files", {})
    return {str(path): str(digest) for path, digest in found.items()} if isinstance(found, dict) else {}
