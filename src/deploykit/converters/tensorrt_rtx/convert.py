"""Builds a TensorRT-RTX engine from ONNX, ahead of time, without a GPU (runs in the worker)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorrt_rtx as trt

from deploykit import graph
from deploykit.converters.profiles import Profile, describe, resolve_profiles
from deploykit.converters.tensorrt_rtx.network import allow_decomposition, interface_changes
from deploykit.converters.tensorrt_rtx.options import compute_capabilities, flag
from deploykit.converters.tensorrt_rtx.parser import NAME, VendorLog, load_plugins, node_in, parse_problems
from deploykit.converters.tensorrt_rtx.plan import read_plan
from deploykit.errors import UsageError, VendorError
from deploykit.lazy import versions_of
from deploykit.report import Finding, failure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_DISTRIBUTIONS = ("tensorrt_rtx", "tensorrt_rtx_cu12", "tensorrt_rtx_cu13")
_PLACES = ("MIN", "OPT", "MAX")
_CONTRADICTION = re.compile(
    r"k(?P<which>MIN|OPT|MAX) values for profile \d+ violate shape constraints: (?P<node>[^:]+): (?P<why>.+?)( In |$)"
)


def convert_job(
    model: str,
    output: str,
    options: Mapping[str, Any],
    dims: Mapping[str, Sequence[int | None]],
    profiles: Mapping[str, Profile],
    precision: str,
) -> dict[str, Any]:
    """Builds the engine at `output`; precision is in the ONNX already (types, casts, Q/DQ) and is not touched.

    Networks are strongly typed. TF32 is off unless asked for: it would compute fp32 layers with 10-bit mantissas.
    Returns the facts of a `Product`; what the vendor refused or dropped is an error finding, and nothing is written
    then. Raises VendorError (DK525) when the builder fails, naming the layer where the builder does, and UsageError
    (DK521) for a profile with a shape that the model does not run in.
    """
    inputs, outputs = graph.interface(graph.load(Path(model)))
    capabilities = compute_capabilities(options, trt.ComputeCapability.__members__)
    tf32 = flag(options, "tf32")
    load_plugins(options.get("custom_ops"))
    shapes, findings = resolve_profiles(inputs, dims, profiles, target=NAME)
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
        builder = trt.Builder(log)
        network, refused = _parse(builder, log, model)
        findings += refused or interface_changes(network, inputs, outputs)
        if not _blocked(findings):
            start = len(log.messages)
            plan = _build(builder, log, network, capabilities, shapes, tf32=tf32)
            findings += log.findings(start)
            Path(output).write_bytes(memoryview(plan))
            result["metrics"] = _static_check(Path(output), capabilities, shapes, findings)
    result["findings"] = [finding.as_dict() for finding in findings]
    return result


def _blocked(findings: Sequence[Finding]) -> bool:
    return any(finding.severity == "error" for finding in findings)


def _parse(builder: Any, log: VendorLog, model: str) -> tuple[Any, list[Finding]]:
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, log)
    if parser.parse_from_file(model):
        allow_decomposition(network)
        return network, []
    problems = parse_problems(parser)
    if not problems:
        raise VendorError(
            f"TensorRT-RTX does not read {Path(model).name}", code="DK525", file=model, target=NAME, log=log.lines()
        )
    return network, [
        failure(
            "DK526",
            f"TensorRT-RTX refuses node {problem.node!r} ({problem.op}): {problem.reason}",
            target=NAME,
            node=problem.node,
            op=problem.op,
            hint=f"deploykit check {Path(model).name} --target {NAME} lists every node and what to do",
        )
        for problem in problems
    ]


def _build(
    builder: Any,
    log: VendorLog,
    network: Any,
    capabilities: Sequence[str],
    shapes: Mapping[str, Profile],
    *,
    tf32: bool,
) -> Any:
    config = builder.create_builder_config()
    config.num_compute_capabilities = len(capabilities)
    for index, name in enumerate(capabilities):
        config.set_compute_capability(trt.ComputeCapability.__members__[name], index)
    (config.set_flag if tf32 else config.clear_flag)(trt.BuilderFlag.TF32)
    if shapes:
        profile = builder.create_optimization_profile()
        for name, (smallest, usual, largest) in shapes.items():
            profile.set_shape(name, smallest, usual, largest)
        config.add_optimization_profile(profile)
    start = len(log.messages)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        errors = log.errors(start) or ["it gave no reason"]
        _expect_fitting(errors, shapes)
        node = next((found for found in map(node_in, errors) if found), None)
        raise VendorError(
            f"TensorRT-RTX could not build the engine{f' at {node!r}' if node else ''}: {errors[-1]}",
            code="DK525",
            node=node,
            target=NAME,
            log=log.lines(start),
            hint="deploykit check --target tensorrt-rtx; other GPUs: --option sm=...",
        )
    return plan


def _expect_fitting(errors: Sequence[str], shapes: Mapping[str, Profile]) -> None:
    """Shapes that contradict each other inside the model are the profile's fault. Raises UsageError (DK521)."""
    found = next(filter(None, map(_CONTRADICTION.search, errors)), None)
    if found is None:
        return
    which = _PLACES.index(found["which"])
    tried = ", ".join(f"{name}={'x'.join(map(str, profile[which]))}" for name, profile in shapes.items())
    raise UsageError(
        f"the model does not run in the {found['which']} shape of its profile, {tried}: {found['why']}",
        code="DK521",
        node=found["node"],
        target=NAME,
        hint="--profile INPUT=MIN:OPT:MAX with three shapes that the model runs in, as with multiples of its strides",
    )


def _static_check(
    output: Path, capabilities: Sequence[str], shapes: Mapping[str, Profile], findings: list[Finding]
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
    return {
        "static_check": plan.as_metrics(),
        "profiles": {name: describe(profile) for name, profile in shapes.items()},
    }
