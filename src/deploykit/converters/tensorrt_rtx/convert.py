"""Builds a TensorRT-RTX engine from ONNX, ahead of time, without a GPU (runs in the worker)."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorrt_rtx as trt

from deploykit import graph, io
from deploykit.converters.profiles import describe, resolve_sets
from deploykit.converters.tensorrt import engine
from deploykit.converters.tensorrt.findings import interface_changes, not_built, refused
from deploykit.converters.tensorrt.options import flag, lacking, settings
from deploykit.converters.tensorrt.symbols import contradicted, told, without
from deploykit.converters.tensorrt_rtx.options import compute_capabilities
from deploykit.converters.tensorrt_rtx.parser import NAME, VendorLog, load_plugins
from deploykit.converters.tensorrt_rtx.plan import read_plan
from deploykit.converters.tensorrt_rtx.reproducible import in_turn
from deploykit.lazy import versions_of
from deploykit.report import Finding, failure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.artifact import TensorSpec
    from deploykit.converters.profiles import Profile, ProfileSets

_DISTRIBUTIONS = ("tensorrt_rtx", "tensorrt_rtx_cu12", "tensorrt_rtx_cu13")
_TITLE = "TensorRT-RTX"
_OTHERWISE = "deploykit check --target tensorrt-rtx; other GPUs: --option sm=...; more memory: --option workspace=..."


def convert_job(
    model: str,
    output: str,
    options: Mapping[str, Any],
    dims: Mapping[str, Sequence[int | None]],
    profiles: ProfileSets,
    precision: str,
) -> dict[str, Any]:
    """Builds the engine at `output`; precision is in the ONNX already (types, casts, Q/DQ) and is not touched.

    Networks are strongly typed. TF32 is off unless asked for: it would compute fp32 layers with 10-bit mantissas.
    Returns the facts of a `Product`; what the vendor refused or dropped is an error finding, and nothing is written
    then. Raises VendorError (DK525) when the builder fails, naming the layer where the builder does, UsageError
    (DK521) for a profile with a shape that the model does not run in, (DK592) for an option that this version lacks.
    """
    inputs, outputs = graph.interface(graph.load(Path(model)))
    capabilities = compute_capabilities(options, trt.ComputeCapability.__members__)
    chosen = settings(options, NAME)
    flag(options, "prove_reproducible", NAME)  # whoever calls twice sees to it
    load_plugins(options.get("custom_ops"))
    sets, findings = resolve_sets(inputs, dims, profiles, target=NAME)
    result: dict[str, Any] = {
        "inputs": [spec.as_dict() for spec in inputs],
        "outputs": [spec.as_dict() for spec in outputs],
        "files": [Path(output).name],
        "versions": versions_of(*_DISTRIBUTIONS),
        "findings": findings,
        "metrics": {},
    }
    if not _blocked(findings):
        log = VendorLog()
        apart = contradicted(inputs, sets)
        findings += told(apart, NAME)
        with without(model, apart) as parsed:
            built = _built(log, parsed, chosen, sets, precision, capabilities, (inputs, outputs), findings)
        if built is not None:
            Path(output).write_bytes(memoryview(built.plan))
            result["metrics"] = {
                **_static_check(Path(output), capabilities, sets, findings),
                "build": _measured(built, Path(output)),
            }
            result["built_for"] = {"tensorrt_rtx": trt.__version__, "compute_capabilities": _dotted(capabilities)}
    result["findings"] = [finding.as_dict() for finding in findings]
    return result


def _blocked(findings: Sequence[Finding]) -> bool:
    return any(finding.severity == "error" for finding in findings)


def _built(
    log: VendorLog,
    model: str,
    chosen: Mapping[str, Any],
    sets: Sequence[Mapping[str, Profile]],
    precision: str,
    capabilities: Sequence[str],
    interface: tuple[Sequence[TensorSpec], Sequence[TensorSpec]],
    findings: list[Finding],
) -> engine.Built | None:
    """The engine; None where findings that are errors were added before anything was built."""
    parsed: list[int] = []

    def look(network: Any) -> bool:
        findings.extend(interface_changes(network, *interface, NAME))
        parsed.append(len(log.kept.messages))
        return not _blocked(findings)

    try:
        with in_turn():
            built = engine.build(trt, log, model, chosen, sets, precision, capabilities=capabilities, on_network=look)
    except engine.OptionError as problem:
        raise lacking(problem, NAME) from problem
    except engine.RefusedError as problem:
        findings += refused(problem, model, NAME, _TITLE)
        return None
    except engine.BuildError as problem:
        raise not_built(problem, sets, NAME, _TITLE, _OTHERWISE) from problem
    findings += log.findings(parsed[0])
    return built


def _measured(built: engine.Built, output: Path) -> dict[str, Any]:
    """Time and memory of the build, for reports: a manifest holds none."""
    return {
        "seconds": {name: round(value, 3) for name, value in built.seconds.items()},
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "sha256": io.file_sha256(output),
        "reproducible": None,
    }


def _dotted(capabilities: Sequence[str]) -> list[str]:
    """Compute capabilities as NVIDIA writes them: SM120 is 12.0."""
    return [f"{name[2:-1]}.{name[-1]}" for name in capabilities]


def _static_check(
    output: Path, capabilities: Sequence[str], sets: Sequence[Mapping[str, Profile]], findings: list[Finding]
) -> dict[str, Any]:
    plan = read_plan(output)
    wanted = {name.lower() for name in capabilities}
    # A plan without compiled kernels (only copies and reshapes) has no list; then there is nothing to compare.
    if plan.accelerators and set(plan.accelerators) != wanted:
        findings.append(
            failure(
                "DK528",
                f"the engine was asked for {', '.join(sorted(wanted))} and holds {', '.join(plan.accelerators)}",
                target=NAME,
            )
        )
    described = [{name: describe(profile) for name, profile in shapes.items()} for shapes in sets]
    return {
        "static_check": plan.as_metrics(),
        "profiles": described if len(described) > 1 else next(iter(described), {}),
    }
