"""Simplifying, presenting and proving, as jobs for the worker that has the graph library.

What they write is only a candidate: `equivalence.compare_models` decides.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit import graph, io
from deploykit.graph.stochastic import stochastic_in
from deploykit.lazy import postpone_sympy, versions_of
from deploykit.optimizers.presentation import Presentation
from deploykit.progress import OnProgress, silent

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from deploykit.equivalence import Baseline

postpone_sympy()
# What was found out about the originals of this process: one model, under the state of its file.
_presentations: dict[tuple[str, int, int], tuple[Presentation, dict[str, Any]]] = {}
_baselines: dict[tuple[str, int, int, int, str], Baseline] = {}


def describe_job(model: str) -> dict[str, Any]:
    """`graph.describe`, as JSON for `artifact_from_dict`."""
    path = Path(model)
    loaded = graph.load(path)
    found = graph.describe(path, loaded)
    _remember(path, loaded)
    del loaded
    _free()
    more = {"stage": found.stage, "options": found.options, "tool_versions": found.tool_versions}
    return {**found.as_dict(), **more, "files": list(found.files), "companions": list(found.companions)}


def native_job(model: str, output: str, exact: bool = False) -> dict[str, Any]:
    """Writes what the native passes make of the model at `output`; returns nodes, bytes, files, versions.

    exact: without the passes that change rounding.
    """
    from deploykit.graph.reading import EXTERNAL_FILES
    from deploykit.optimizers.native import simplify_natively

    path = Path(model)
    loaded = graph.load(path)
    size = sum(io.size_of(path.parent / name) for name in (path.name, *loaded.meta[EXTERNAL_FILES]))
    presentation, original = _remember(path, loaded)
    facts = _written(simplify_natively(loaded, size, exact=exact), presentation, Path(output))
    del loaded
    _free()
    return {**facts, "original": original, "versions": versions_of("onnx-ir", "onnx")}


def present_job(model: str, made: str, output: str) -> dict[str, Any]:
    """Writes an engine's result with the presentation of the original; returns nodes, bytes, files.

    The result is checked as any foreign model is.
    """
    presentation, facts = _remember(Path(model))
    written = _written(graph.load(Path(made)), presentation, Path(output))
    _free()
    return {**written, "original": facts}


def _remember(path: Path, model: ir.Model | None = None) -> tuple[Presentation, dict[str, Any]]:
    """The presentation of an original, and its facts; model: the file, unchanged, where it has been loaded."""
    key = _state(path)
    if key not in _presentations:
        _presentations.clear()
        loaded = graph.load(path) if model is None else model
        _presentations[key] = Presentation.of(loaded), _measured(loaded)
    return _presentations[key]


def _state(path: Path) -> tuple[str, int, int]:
    found = path.stat()
    return str(path.resolve()), found.st_mtime_ns, found.st_size


def _free() -> None:
    """Leaves room for the other engines, and for what follows here."""
    from deploykit.reference import free_memory

    free_memory()


def _written(simplified: ir.Model, presentation: Presentation, output: Path) -> dict[str, Any]:
    presentation.give(simplified)
    files = graph.save(simplified, output)
    size = sum(io.size_of(output.parent / name) for name in files)
    inputs, outputs = ([spec.as_dict() for spec in specs] for specs in graph.interface(simplified))
    shown = {"inputs": inputs, "outputs": outputs, "opset": graph.opset(simplified) or None}
    return {"nodes": count_nodes(simplified), "bytes": size, "files": list(files), "interface": shown}


def copy_job(model: str, output: str) -> list[str]:
    """Writes a model with external data anew, so that the data's name fits; returns the names of the files."""
    return list(graph.save(graph.load(Path(model)), Path(output)))


def verify_job(
    original: str,
    candidate: str,
    dims: dict[str, list[int | None]],
    seed: int,
    several: bool = False,
    on_progress: OnProgress = silent,
) -> dict[str, Any]:
    """`equivalence.compare_models`, in the worker of an engine.

    several: other candidates may follow, so what the original gives is kept for them.
    """
    from deploykit.equivalence import compare_models, run_original

    first, second = Path(original), Path(candidate)
    key = (*_state(first), seed, str(dims))
    if several and key not in _baselines:
        _baselines.clear()
        _baselines[key] = run_original(first, dims=dims, seed=seed, on_progress=on_progress)
    known = _baselines.get(key)
    result = compare_models(first, second, dims=dims, seed=seed, baseline=known, on_progress=on_progress)
    _free()
    return result


def measure_job(model: str) -> dict[str, Any]:
    """Nodes of a model, for comparison with candidates, and the names of those that draw random numbers."""
    return _measured(graph.load(Path(model)))


def _measured(model: ir.Model) -> dict[str, Any]:
    return {"nodes": count_nodes(model), "random": stochastic_in(model)}


def fix_dims_job(model: str, output: str, dims: dict[str, int]) -> list[str]:
    """Writes the model with numbers in the place of symbolic dimensions; returns the names of the files.

    Outputs declare the sizes that follow. Inferred shapes inside are dropped: the engines infer them again.
    """
    loaded = graph.load(Path(model))
    for scope in loaded.graphs():
        for node in scope:
            for value in node.outputs:
                if not value.is_graph_output():
                    value.shape = None
        for value in (*scope.inputs, *scope.outputs):
            if value.shape is not None:
                sizes = [dims.get(str(getattr(dim, "value", "")), dim) for dim in value.shape.dims]
                value.shape = type(value.shape)(sizes)
    graph.infer_shapes(loaded)
    for node in graph.all_nodes(loaded):
        for value in node.outputs:
            if not value.is_graph_output():
                value.shape = None
    return list(graph.save(loaded, Path(output)))


def count_nodes(model: ir.Model) -> int:
    """Nodes that compute, subgraphs included; a Constant is a stored value, like an initializer."""
    return sum(node.op_type != "Constant" for node in graph.all_nodes(model))


def whole(path: Path) -> onnx.ModelProto:
    """The model as one message, external data inside; the stage keeps models above 2 GB away."""
    import onnx_ir

    loaded = graph.load(path)
    onnx_ir.external_data.load_to_model(loaded)
    proto: onnx.ModelProto = onnx_ir.to_proto(loaded)
    return proto


def graph_of(proto: Any) -> ir.Model:
    """Checked as any foreign model is: an engine's result is input to us."""
    with io.scratch_folder() as folder:
        file = Path(folder) / "candidate.onnx"
        file.write_bytes(proto.SerializeToString(deterministic=True))
        return graph.load(file)
