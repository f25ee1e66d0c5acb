"""`deploykit check`: every problem that a model has with each target, all at once, before anything is converted."""

from __future__ import annotations

import dataclasses
import functools
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit import io
from deploykit.api.extensions import extension_libraries, with_extensions
from deploykit.api.fix import check_usage, fix_model, next_steps
from deploykit.api.hints import Hints, Wanted
from deploykit.data.request import bounds_of
from deploykit.errors import UsageError
from deploykit.isolation import workers
from deploykit.opsupport import saving
from deploykit.opsupport.checker import TargetSummary, check_model
from deploykit.opsupport.findings import findings_of
from deploykit.progress import OnProgress, silent
from deploykit.report import Report, failure
from deploykit.target import check_options, get_target, parse_target, target_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from deploykit.api.extensions import CustomOps
    from deploykit.report import Finding

ALL = "all"


def check(
    model: str | Path,
    *,
    targets: Sequence[str],
    dims: Iterable[str] | Mapping[str, Sequence[int | None]] = (),
    profiles: Mapping[str, Sequence[Sequence[int]]] | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    probe: bool = False,
    save_nodes: str | Path | None = None,
    custom_ops: CustomOps = None,
    fix: bool = False,
    output: str | Path | None = None,
    dry_run: bool = False,
    force: bool = False,
    seed: int = 0,
    on_progress: OnProgress = silent,
) -> Report:
    """Asks each target's own engine, measured table and operator table about every node of an ONNX model.

    targets: `name` or `name@version`, or `all`: every target at its default version, and every other place where it
    runs that a table speaks for (ONNX Runtime's providers, the backends of ONNX Runtime Web).
    dims: `batch=1..64`, or bounds by name. options: by target name.
    probe: builds and runs each node alone that is unknown, conditional or disputed, where the target's engine is here.
    save_nodes: a folder for the refused nodes, each as a model with inputs; one of an earlier call needs `force`.
    custom_ops: extension libraries, see `extensions.extension_libraries`.
    fix: rewrites the model until the targets take it, and writes at `output` what is proven equal to it, also when
    something is left that they refuse; dry_run: writes nothing, and reports the same.
    Returns a report with one finding for each refused node (error: its target does not run the model) and
    `metrics["targets"]`, one summary for each target; with fix they are those of the result, and `metrics["fix"]` has
    the rewrites. With `all` the report fails only when no target runs the model.
    Raises UsageError for a target or option, ModelError or InvalidFileError for the file, OutputError for the output,
    and UnavailableError or VendorError when there is one target only and nobody can be asked about it.
    """
    started = time.perf_counter()
    written = check_usage(fix=fix, output=output, dry_run=dry_run, force=force, besides=save_nodes)
    if dry_run and (probe or save_nodes is not None):
        option = "--probe" if probe else "--save-nodes"
        raise UsageError(
            f"{option} needs the rewritten model, and --dry-run writes none", hint=f"leave {option} away, or --dry-run"
        )
    if save_nodes is not None:
        saving.check_folder(Path(save_nodes), force=force)
    everything = ALL in targets
    named = [name for name in dict.fromkeys(targets) if name != ALL]
    names = _distinct([*named, *(_everything() if everything else ())])
    if not names:
        raise UsageError("no target is named", hint=f"--target {','.join(target_names())}, or --target {ALL}")
    for name in names:
        target, _ = parse_target(name)
        check_options(target, (options or {}).get(target.name, {}))
    libraries = extension_libraries(custom_ops, [parse_target(name)[0] for name in names])
    options = with_extensions(options, libraries)
    wanted = Wanted(io.existing_file(Path(model), "model"), names, bounds_of(dims), libraries)
    ask = functools.partial(check_model, targets=names, dims=wanted.dims, profiles=profiles, options=options)
    summaries: Sequence[TargetSummary]
    saved: list[saving.SavedNode] = []
    told: list[Finding] = []
    with workers():
        summaries = ask(wanted.model, probe=probe and not fix, seed=seed, on_progress=on_progress)
        problem = summaries[0].problem
        if len(summaries) == 1 and problem is not None and (problem.exit_code == 4 or not summaries[0].spoke):
            raise problem
        report = Report("check")
        if fix:
            report, summaries = fix_model(
                wanted, ask, summaries, output=written, force=force, seed=seed, on_progress=on_progress
            )
        result = report.artifact.path if report.artifact is not None else wanted.model
        if fix and probe:
            summaries = ask(result, probe=True, seed=seed, on_progress=on_progress)
        if save_nodes is not None:
            saved, told = saving.save_nodes(
                result,
                summaries,
                names,
                Path(save_nodes),
                dims=wanted.dims,
                options=options,
                seed=seed,
                force=force,
                on_progress=on_progress,
            )
    report.metrics |= {"model": str(model), "targets": [summary.as_dict() for summary in summaries]}
    some = any(summary.runs for summary in summaries)
    hints = Hints(dataclasses.replace(wanted, model=result), fixable=not fix)
    for name, summary, label in zip(names, summaries, labels(summaries), strict=True):
        stopped = {node.node for node in summary.nodes if not node.verdict.runs}
        report.add(*hints.improved(findings_of(summary, label, lenient=some and name not in named), name, stopped))
    if save_nodes is not None:
        report.metrics["saved_nodes"] = [entry.as_dict() for entry in saved]
        report.add(*told)
    if report.artifact is not None:
        report.add(*next_steps(wanted, report.artifact.path, summaries))
    if everything and not any(summary.runs is not False for summary in summaries):
        report.add(failure("DK211", "no target runs this model as it is", hint="the findings above say what to change"))
    report.seconds = time.perf_counter() - started
    return report


def _everything() -> Iterator[str]:
    """What `all` means: older releases of a target are asked about by name only."""
    for target in map(get_target, target_names()):
        yield target.name
        for version in target.versions[1:]:
            if not target.numbered and not target.asks_engine(version):
                yield f"{target.name}@{version}"


def _distinct(names: Sequence[str]) -> list[str]:
    """Each target and version once: `onnxruntime` is `onnxruntime@cpu`."""
    seen: dict[tuple[str, str | None], str] = {}
    for name in names:
        target, version = parse_target(name)
        seen.setdefault((target.name, version), name)
    return list(seen.values())


def labels(summaries: Sequence[TargetSummary]) -> list[str]:
    """How findings name the targets: with the version only where a target is asked about in several."""
    names = [summary.target.name for summary in summaries]
    return [
        f"{summary.target.name}@{summary.version}" if names.count(summary.target.name) > 1 else summary.target.name
        for summary in summaries
    ]
