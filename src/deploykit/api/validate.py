"""`deploykit.validate`: two artifacts on the same inputs."""

from __future__ import annotations

import dataclasses
import functools
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from deploykit.api.extensions import extension_libraries
from deploykit.api.inspect import inspect
from deploykit.api.locate import locate as find_first
from deploykit.api.locate import require_locatable
from deploykit.api.rounding import settle
from deploykit.comparison import accuracy_of, describe, require_runnable
from deploykit.data.request import bounds_of, data_request, with_contract
from deploykit.data.stated import stated_contract
from deploykit.errors import UnavailableError
from deploykit.evaluation import make_metric
from deploykit.io import check_output
from deploykit.isolation import run_isolated, workers
from deploykit.parity import TOLERANCES, row_for
from deploykit.progress import OnProgress, silent
from deploykit.report import Finding, Report
from deploykit.target import target_of_format

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from deploykit.api.extensions import CustomOps
    from deploykit.artifact import Artifact

DEFAULT_METRIC = "top1"


def validate(
    reference: str | Path,
    candidate: str | Path,
    *,
    data: str | None = None,
    samples: int | None = 16,
    rtol: float | None = None,
    atol: float | None = None,
    min_sqnr: float | None = None,
    eval: str | None = None,
    metric: str | None = None,
    label: str | None = None,
    contract: Any = None,
    device: Literal["cpu", "gpu", "npu", "all"] = "cpu",
    provider: str | None = None,
    custom_ops: CustomOps = None,
    threads: int | None = None,
    dims: Iterable[str] | Mapping[str, Sequence[int | None]] = (),
    seed: int = 0,
    locate: bool = False,
    save_repro: str | Path | None = None,
    force: bool = False,
    on_progress: OnProgress = silent,
) -> Report:
    """Compares two artifacts on the same inputs, output by output.

    data: DATA; random:0 when not given, which the first finding says. samples: at most so many; None: all.
    rtol, atol (absolute), min_sqnr (dB) replace the limits of `parity.TOLERANCES`, whose row follows from both
    precisions. eval: labelled DATA on which both are scored with metric (top1 when not given); metric alone scores on
    `data`. contract: an InputContract or its JSON form. dims: ranges of symbolic dimensions for random data.
    custom_ops: extension libraries, see `extensions.extension_libraries`.
    locate: also searches for the first inner tensor that differs beyond the same limits, in an ONNX, OpenVINO or
    Core ML candidate of an ONNX reference. save_repro: an `.onnx` file for the part that fails, its inputs as `.npz`
    beside it; means locate. force: replaces files that are there.
    Returns a report with a failure for each output beyond its limit, and metrics as in the JSON contract.
    Raises InvalidFileError, ModelError, DataError, UnavailableError (DK502) when one of them cannot run here.
    """
    started = time.perf_counter()
    sides = (described(Path(reference)), described(Path(candidate)))  # a broken file, before a missing engine
    repro = None if save_repro is None else check_output(Path(save_repro), force=force, suffix=".onnx")
    if locate or repro is not None:
        require_locatable(sides)
    for side in sides:
        require_runnable(side.path, simulated=True)
    request = data_request(
        data, "parity", samples=samples, seed=seed, label=label, dims=bounds_of(dims), contract=contract
    )
    # What an artifact was made with: without it nobody could read images for the other one.
    request = with_contract(request, *(stated_contract(side.path) or {} for side in sides))
    libraries = extension_libraries(custom_ops, [target_of_format(side.format) for side in sides])
    options = {"device": device, "provider": provider, "threads": threads, "custom_ops": libraries or None}
    row = row_for(sides[0].precision, sides[1].precision)
    report = Report("validate")
    first, located = None, None
    where: list[Finding] = []
    limits = {"rtol": rtol, "atol": atol, "min_sqnr": min_sqnr}
    with workers():
        result = _call(
            sides,
            "deploykit.comparison:compare_job",
            on_progress,
            reference=str(sides[0].path),
            candidate=str(sides[1].path),
            data=request,
            precision=row,
            **limits,
            options=options,
            metric=metric if eval is None and data is not None else None,
        )
        if all(limit is None for limit in limits.values()):
            call = functools.partial(_call, sides, on_progress=on_progress)
            result = settle(call, sides[0], sides[1].path, result, request, options)
        if locate or repro is not None:
            job = functools.partial(
                _call,
                sides,
                "deploykit.locating.job:locate_job",
                on_progress,
                reference=str(sides[0].path),
                candidate=str(sides[1].path),
                data=request,
                row=row,
                **limits,
                options=options,
            )
            first, located, where = find_first(job, result["outputs"], repro, force)
        if eval is not None or (metric is not None and data is None):
            labelled = {**request, "source": eval, "samples": None, "purpose": "accuracy"}
            result["accuracy"] = _accuracy(sides, labelled, metric or DEFAULT_METRIC, options, on_progress)
        told = _defaults(sides, request, options, on_progress)
    again = _command(sides, data, samples, {"--rtol": rtol, "--atol": atol, "--min-sqnr": min_sqnr})
    report.add(*(_with_command(Finding.from_dict(facts), again) for facts in result["findings"]))
    report.add(*where, *map(Finding.from_dict, told["findings"]))
    report.artifacts = [dataclasses.replace(sides[1], execution=result["execution"]), sides[0]]
    report.metrics = {
        "outputs": result["outputs"],
        "samples": result["samples"],
        "accuracy": result["accuracy"],
        "first_divergence": first,
        "located": located,
        "execution": result["execution"],
        "engines": result["engines"],
        **({"segments": result["segments"]} if "segments" in result else {}),
        "tolerance": {"row": row, "limits": TOLERANCES[row].override(rtol, atol, min_sqnr).describe()},
        "data": result["data"],
        **told["metrics"],
    }
    report.seconds = time.perf_counter() - started
    return report


def described(path: Path) -> Artifact:
    """The artifact at `path`: as its manifest says when that fits the files, else as its target reads it.

    Where what reads it is not installed, it keeps what the suffix tells.
    """
    found = describe(path)
    if found.format == "onnx" or found.stage:
        return found
    try:
        return inspect(path).artifact or found
    except UnavailableError:
        return found


def _call(sides: Sequence[Artifact], function: str, on_progress: OnProgress, **arguments: Any) -> Any:
    """Calls a job in a worker in which the packages that either target wants out are out."""
    targets = [target_of_format(side.format) for side in sides]
    blocked = sorted({package for target in targets if target for package in target.blocked})
    name = "-".join(["compare", *blocked])
    return run_isolated(name, function, arguments, block=blocked, on_progress=on_progress)


def _defaults(
    sides: Sequence[Artifact], request: dict[str, Any], options: dict[str, Any], on_progress: OnProgress
) -> dict[str, Any]:
    """What the candidate's engine changes by its own defaults on the CPU, for targets that measure it."""
    target = target_of_format(sides[1].format)
    if target is None or target.defaults is None or options["device"] not in (None, "cpu"):
        return {"metrics": {}, "findings": []}
    found: dict[str, Any] = _call(
        sides[1:], target.defaults, on_progress, artifact=str(sides[1].path), data=request, options=options
    )
    return found


def _accuracy(
    sides: Sequence[Artifact], data: dict[str, Any], metric: str, options: dict[str, Any], on_progress: OnProgress
) -> dict[str, Any]:
    results = [scored(side, data, metric, options, on_progress, sides) for side in sides]
    facts = accuracy_of(make_metric(metric), results[0]["value"], results[1]["value"])
    return {**facts, "samples": results[1]["samples"], "int8_macs_share": results[1]["int8_macs_share"]}


def scored(
    side: Artifact,
    data: dict[str, Any],
    metric: str,
    options: dict[str, Any],
    on_progress: OnProgress,
    others: Sequence[Artifact] = (),
) -> dict[str, Any]:
    """What `comparison.evaluate_job` finds of an artifact, in a worker; others: may spell the texts that it gives."""
    arguments = {
        "artifact": str(side.path),
        "data": data,
        "metric": metric,
        "options": options,
        "models": [str(other.path) for other in others],
    }
    found: dict[str, Any] = _call([side], "deploykit.comparison:evaluate_job", on_progress, **arguments)
    return found


def _command(
    sides: Sequence[Artifact], data: str | None, samples: int | None, limits: Mapping[str, float | None]
) -> str:
    """The command that shows the same again."""
    words = ["deploykit", "validate", *(str(side.path) for side in sides)]
    words += ["--data", data] if data is not None else []
    words += ["--samples", str(samples)] if samples is not None else []
    words += [word for option, value in limits.items() if value is not None for word in (option, f"{value:g}")]
    return shlex.join(words)


def _with_command(finding: Finding, command: str) -> Finding:
    if finding.severity != "error":
        return finding
    return dataclasses.replace(finding, hint=f"{finding.hint}; {command}" if finding.hint else command)
