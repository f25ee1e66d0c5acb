"""A file proven to load in ONNX Runtime, optimised ahead of time or in its own format on request (in the worker)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnxruntime as ort

from deploykit import graph, io
from deploykit.converters.bounds import unused_bounds
from deploykit.converters.onnxruntime.dimensions import fix_sizes, fixed_sizes
from deploykit.converters.onnxruntime.ort_format import FORMAT, write_ort
from deploykit.converters.onnxruntime.placement import judge_placement, record
from deploykit.converters.onnxruntime.providers import provider_for
from deploykit.converters.onnxruntime.runtime import open_session, session_options, with_library
from deploykit.errors import ModelError, UsageError
from deploykit.report import note

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx_ir as ir

    from deploykit.converters.onnxruntime.providers import Provider
    from deploykit.report import Finding
    from deploykit.runtime import RuntimeOptions

_LEVELS = {
    "none": None,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
# Blocks channels as this machine's CPU wants them, which others may not run, in an order that differs from run to run.
_OF_THIS_CPU = ("NchwcTransformer",)
_FORMATS = ("onnx", FORMAT)


def convert_job(
    model: str,
    output: str,
    options: Mapping[str, Any],
    dims: Mapping[str, Sequence[int | None]],
    profiles: Mapping[str, Sequence[Sequence[int]]],
    precision: str,
) -> dict[str, Any]:
    """Writes `output` (.onnx): the same graph, dimensions with one size left fixed, optimised as far as asked.

    Every session optimises the graph for its machine when it loads it. So the default, `optimization=none`, loses
    nothing and runs everywhere; doing it ahead of time saves load time, and `extended` ties the file to ONNX Runtime.
    `all` leaves out what is for this machine's CPU alone. provider: the one whose fusions are made, and that is to take
    the model. format=ort writes ONNX Runtime's own format (`ort_format`), at the level `all` where none is given.
    Raises UsageError (DK206, DK527) for unknown values, GateError or ModelError when the engine does not load the
    model or the provider takes no node (DK571), VendorError when ONNX Runtime cannot write its format.
    """
    format = _one_of(options, "format", _FORMATS, "onnx", "DK527")
    level = _one_of(options, "optimization", tuple(_LEVELS), "none" if format == "onnx" else "all", "DK206")
    types = _one_of(options, "types", ("true", "false"), "false", "DK527") == "true"
    asked = with_library(options)
    provider = provider_for(asked)
    if format == FORMAT and asked.provider is not None:
        raise UsageError(
            "ONNX Runtime's own format is made for the CPU, and other providers take its nodes when it is loaded",
            code="DK527",
            target="onnxruntime",
            hint="leave --option provider away",
        )
    path, final = Path(model), Path(output)
    loaded = graph.load(path)
    inputs, _ = graph.interface(loaded)
    findings = unused_bounds(inputs, dims, profiles, target="onnxruntime")
    fixed = fixed_sizes(inputs, dims, profiles)
    fix_sizes(loaded, fixed)
    # The folder is a staging one: the user knows the file by its name.
    with io.no_space_named(Path(final.name)):
        listed = []
        if format == FORMAT:
            listed = [write_ort(loaded, final, level, asked.custom_ops.get("onnxruntime"), types=types)]
            files: tuple[str, ...] = (final.name,)
        else:
            files = graph.save(loaded, final)
            if (chosen := _LEVELS[level]) is not None:
                loaded, files = _optimise(final, files, chosen, asked, provider)
                findings += _ties(level, loaded)
    try:
        settings = session_options(asked)
        record(settings)
        findings += judge_placement(open_session(final, settings, provider), provider, path)
    except ModelError as problem:
        raise (_contradiction(path, fixed, problem) if fixed else problem) from problem
    inputs, outputs = graph.interface(loaded)
    return {
        "inputs": [spec.as_dict() for spec in inputs],
        "outputs": [spec.as_dict() for spec in outputs],
        "files": list(files),
        "format": format,
        "companions": listed,
        "versions": {"onnxruntime": ort.__version__},
        "findings": [finding.as_dict() for finding in findings],
        "metrics": {"optimization": level, "nodes": sum(1 for _ in graph.all_nodes(loaded))},
    }


def _one_of(options: Mapping[str, Any], name: str, known: Sequence[str], usual: str, code: str) -> str:
    value = str(options.get(name, usual))
    if value not in known:
        raise UsageError(f"{name} is one of {', '.join(known)}, not {value!r}", code=code, target="onnxruntime")
    return value


def _contradiction(path: Path, fixed: Mapping[str, int], problem: ModelError) -> ModelError:
    """What the engine refuses with sizes fixed; the file in its own message is a temporary one."""
    sizes = ", ".join(f"{name}={size}" for name, size in fixed.items())
    return ModelError(
        f"with {sizes} fixed, {problem.message}",
        code=problem.code,
        file=path,
        hint="leave these dimensions open, without --dim or with MIN below MAX: a shape inside contradicts the sizes",
    )


def _optimise(
    file: Path, files: Sequence[str], level: ort.GraphOptimizationLevel, options: RuntimeOptions, provider: Provider
) -> tuple[ir.Model, tuple[str, ...]]:
    """Replaces the written model by the one that ONNX Runtime makes of it for the provider; its graph and its files.

    Raises UsageError (DK527) for a provider that compiles its nodes, which no ONNX file can hold.
    """
    with io.scratch_folder(file.parent) as scratch:
        optimised = Path(scratch) / file.name
        chosen = session_options(options)
        chosen.graph_optimization_level = level
        chosen.optimized_model_filepath = str(optimised)
        # Without this the written graph would stop at protobuf's 2 GB.
        chosen.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights.bin")
        try:
            open_session(file, chosen, provider, without=_OF_THIS_CPU)
        except ModelError as problem:
            if "compiled nodes" not in problem.message:
                raise
            raise UsageError(
                f"{provider.name} compiles the nodes it takes, and an ONNX file cannot hold what it makes of them",
                code="DK527",
                target="onnxruntime",
                hint="leave --option optimization away: the provider compiles the model when it is loaded",
            ) from problem
        for name in files:
            (file.parent / name).unlink()
        loaded = graph.load(optimised)
        return loaded, graph.save(loaded, file)


def _ties(level: str, model: ir.Model) -> list[Finding]:
    domains = sorted({node.domain for node in graph.all_nodes(model) if node.domain not in ("", "ai.onnx")})
    if not domains:
        return []
    return [
        note(
            "DK207",
            f"optimization={level} wrote operators of {', '.join(domains)}: the file now runs in ONNX Runtime only",
            target="onnxruntime",
            hint="leave optimization away for a portable file; each session optimises it when it loads it",
        )
    ]
