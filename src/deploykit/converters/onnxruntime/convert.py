"""An ONNX file proven to load in ONNX Runtime, optionally optimised ahead of time (runs in the worker)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnxruntime as ort

from deploykit import graph, io
from deploykit.converters.bounds import unused_bounds
from deploykit.converters.onnxruntime.dimensions import fix_sizes, fixed_sizes
from deploykit.converters.onnxruntime.runtime import open_session, session_options, with_library
from deploykit.errors import ModelError, UsageError
from deploykit.report import note

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx_ir as ir

    from deploykit.report import Finding
    from deploykit.runtime import RuntimeOptions

_LEVELS = {
    "none": None,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
}


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
    Its level "all" is left out: it writes layouts of this machine's CPU, in an order that differs from run to run.
    Raises UsageError (DK206) for an unknown level, GateError or ModelError when the engine does not load the model.
    """
    level = str(options.get("optimization", "none"))
    if level not in _LEVELS:
        raise UsageError(
            f"optimization is one of {', '.join(_LEVELS)}, not {level!r}", code="DK206", target="onnxruntime"
        )
    path, final = Path(model), Path(output)
    loaded = graph.load(path)
    inputs, _ = graph.interface(loaded)
    findings = unused_bounds(inputs, dims, profiles, target="onnxruntime")
    fixed = fixed_sizes(inputs, dims, profiles)
    fix_sizes(loaded, fixed)
    # The folder is a staging one: the user knows the file by its name.
    with io.no_space_named(Path(final.name)):
        files = graph.save(loaded, final)
        if (chosen := _LEVELS[level]) is not None:
            loaded, files = _optimise(final, files, chosen, with_library(options))
            findings += _ties(level, loaded)
    try:
        open_session(final, session_options(with_library(options)))
    except ModelError as problem:
        raise (_contradiction(path, fixed, problem) if fixed else problem) from problem
    inputs, outputs = graph.interface(loaded)
    return {
        "inputs": [spec.as_dict() for spec in inputs],
        "outputs": [spec.as_dict() for spec in outputs],
        "files": list(files),
        "versions": {"onnxruntime": ort.__version__},
        "findings": [finding.as_dict() for finding in findings],
        "metrics": {"optimization": level, "nodes": sum(1 for _ in graph.all_nodes(loaded))},
    }


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
    file: Path, files: Sequence[str], level: ort.GraphOptimizationLevel, options: RuntimeOptions
) -> tuple[ir.Model, tuple[str, ...]]:
    """Replaces the written model by the one that ONNX Runtime makes of it; its graph and its files."""
    with io.scratch_folder(file.parent) as scratch:
        optimised = Path(scratch) / file.name
        chosen = session_options(options)
        chosen.graph_optimization_level = level
        chosen.optimized_model_filepath = str(optimised)
        # Without this the written graph would stop at protobuf's 2 GB.
        chosen.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights.bin")
        open_session(file, chosen)
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
