"""Builds a TensorRT engine on a machine that has the package and a GPU (runs in the worker)."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit import graph
from deploykit.converters.profiles import describe, resolve_sets
from deploykit.converters.tensorrt import engine
from deploykit.converters.tensorrt.findings import interface_changes, not_built, of_log, refused
from deploykit.converters.tensorrt.loading import gpus
from deploykit.converters.tensorrt.options import lacking, settings
from deploykit.converters.tensorrt.symbols import contradicted, told, without
from deploykit.report import Finding, note

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.artifact import TensorSpec
    from deploykit.converters.profiles import Profile, ProfileSets

NAME, TITLE = "tensorrt", "TensorRT"
_OTHERWISE = "deploykit check --target tensorrt; more memory: --option workspace=..."


def convert_job(
    model: str,
    output: str,
    options: Mapping[str, Any],
    dims: Mapping[str, Sequence[int | None]],
    profiles: ProfileSets,
    precision: str,
) -> dict[str, Any]:
    """Builds the engine at `output` by the installed TensorRT; precision is in the ONNX (types, casts, Q/DQ).

    Returns the facts of a `Product`. Raises VendorError (DK525) when the builder fails, UsageError (DK521, DK527,
    DK592) for a profile or an option.
    """
    return built_by(importlib.import_module("tensorrt"), model, output, options, dims, profiles, precision)


def built_by(
    trt: Any,
    model: str,
    output: str,
    options: Mapping[str, Any],
    dims: Mapping[str, Sequence[int | None]],
    profiles: ProfileSets,
    precision: str,
    *,
    capabilities: Sequence[str] = (),
) -> dict[str, Any]:
    """As `convert_job`, by a given module. capabilities: for one that builds ahead of time."""
    inputs, outputs = graph.interface(graph.load(Path(model)))
    chosen = settings(options, NAME)
    sets, findings = resolve_sets(inputs, dims, profiles, target=NAME)
    findings += _version(trt, options.get("version"))
    result: dict[str, Any] = {
        "inputs": [spec.as_dict() for spec in inputs],
        "outputs": [spec.as_dict() for spec in outputs],
        "files": [Path(output).name],
        "versions": {"tensorrt": trt.__version__},
        "metrics": {},
    }
    if not _blocked(findings):
        log = engine.logger(trt)
        libraries = [options["custom_ops"]] if options.get("custom_ops") else []
        apart = contradicted(inputs, sets)
        findings += told(apart, NAME)
        with without(model, apart) as parsed:
            built = _built(
                trt, log, parsed, chosen, sets, precision, libraries, (inputs, outputs), findings, capabilities
            )
        if built is not None:
            Path(output).write_bytes(memoryview(built.plan))
            if built.cache is not None:
                Path(chosen["timing_cache"]).write_bytes(memoryview(built.cache))
            result["built_for"] = _built_for(trt, chosen)
            result["metrics"] = {
                "profiles": [{name: describe(shapes) for name, shapes in each.items()} for each in sets],
                "build": {"seconds": {key: round(value, 3) for key, value in built.seconds.items()}},
                "typed": built.typed,
                "features": engine.features(trt),
            }
    result["findings"] = [finding.as_dict() for finding in findings]
    return result


def _blocked(findings: Sequence[Finding]) -> bool:
    return any(finding.severity == "error" for finding in findings)


def _version(trt: Any, asked: str | None) -> list[Finding]:
    """A note where the operator table that judged the model is of another version than the builder."""
    if asked is None or trt.__version__.split(".")[: len(asked.split("."))] == asked.split("."):
        return []
    told = f"the engine is built by TensorRT {trt.__version__}; the model was judged by the table of {asked}"
    return [note("DK524", told, target=NAME, hint=f"--to {NAME}@{'.'.join(trt.__version__.split('.')[:2])}")]


def _built_for(trt: Any, chosen: Mapping[str, Any]) -> dict[str, Any]:
    facts: dict[str, Any] = {"tensorrt": trt.__version__}
    here = gpus()
    if here:
        facts |= {"gpu": here[0][0], "compute_capabilities": [here[0][1]]}
    if chosen.get("hardware_compatibility"):
        facts["hardware_compatibility"] = chosen["hardware_compatibility"]
    return facts


def _built(
    trt: Any,
    log: Any,
    model: str,
    chosen: Mapping[str, Any],
    sets: Sequence[Mapping[str, Profile]],
    precision: str,
    libraries: Sequence[str],
    interface: tuple[Sequence[TensorSpec], Sequence[TensorSpec]],
    findings: list[Finding],
    capabilities: Sequence[str],
) -> engine.Built | None:
    parsed: list[int] = []

    def look(network: Any) -> bool:
        findings.extend(interface_changes(network, *interface, NAME))
        parsed.append(len(log.kept.messages))
        return not _blocked(findings)

    try:
        _kept.extend(engine.load_libraries(trt, log, libraries))
        built = engine.build(trt, log, model, chosen, sets, precision, capabilities=capabilities, on_network=look)
    except engine.OptionError as problem:
        raise lacking(problem, NAME) from problem
    except engine.RefusedError as problem:
        findings += refused(problem, model, NAME, TITLE)
        return None
    except engine.BuildError as problem:
        raise not_built(problem, sets, NAME, TITLE, _OTHERWISE) from problem
    findings += of_log(log.kept, NAME, TITLE, parsed[0])
    return built


# A plugin registry unloads a library with its last handle.
_kept: list[Any] = []
