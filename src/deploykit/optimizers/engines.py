"""The simplifiers, each as a job for a worker of its own: native passes, onnxsim, onnxslim.

What they write is only a candidate: `equivalence.compare_models` decides.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit import graph, io
from deploykit.comparison import stochastic_nodes
from deploykit.equivalence import compare_models
from deploykit.lazy import require, versions_of
from deploykit.progress import OnProgress, silent

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx
    import onnx_ir as ir

# Results above this stay computed instead of stored; onnxsim's own default is 1.5 GB.
_ONNXSIM_LARGEST = "64KB"


def simplify_job(engine: str, model: str, output: str) -> dict[str, Any]:
    """Writes what the engine makes of the model at `output`; returns nodes, bytes, files, versions.

    Raises what the engine raises.
    """
    simplified = _ENGINES[engine](Path(model))
    keep_presentation(simplified, graph.load(Path(model)))
    graph.name_nodes(simplified)
    files = graph.save(simplified, Path(output))
    folder = Path(output).parent
    return {
        "nodes": count_nodes(simplified),
        "bytes": sum(io.size_of(folder / name) for name in files),
        "files": list(files),
        "versions": versions_of(*_DISTRIBUTIONS[engine]),
    }


def verify_job(
    original: str, candidate: str, dims: dict[str, list[int | None]], seed: int, on_progress: OnProgress = silent
) -> dict[str, Any]:
    """`equivalence.compare_models`, in the worker of an engine."""
    return compare_models(Path(original), Path(candidate), dims=dims, seed=seed, on_progress=on_progress)


def measure_job(model: str) -> dict[str, Any]:
    """Nodes of a model, for comparison with candidates, and the names of those that draw random numbers."""
    return {"nodes": count_nodes(graph.load(Path(model))), "random": stochastic_nodes(Path(model))}


def fix_dims_job(model: str, output: str, dims: dict[str, int]) -> list[str]:
    """Writes the model with numbers in the place of symbolic dimensions; returns the names of the files.

    Inferred shapes inside are dropped: the engines infer them again.
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
    return list(graph.save(loaded, Path(output)))


def keep_presentation(simplified: ir.Model, original: ir.Model) -> None:
    """Takes off what engines add to a file besides the graph, and gives inputs and outputs their declared shapes back.

    Engines write their options and inferred shapes into the file and rename dimensions. A size that an engine made of a
    named dimension stays visible: that is a changed interface, for the comparison to refuse.
    """
    simplified.metadata_props.clear()
    simplified.metadata_props.update(original.metadata_props)
    simplified.producer_name, simplified.producer_version = original.producer_name, original.producer_version
    simplified.graph.name, simplified.doc_string = original.graph.name, original.doc_string
    keys = {key for node in graph.all_nodes(original) for key in node.metadata_props}
    for node in graph.all_nodes(simplified):
        for key in [key for key in node.metadata_props if key not in keys]:
            del node.metadata_props[key]
    if not any(value.shape is not None for value in _inner_values(original)):
        for value in _inner_values(simplified):
            value.shape = value.type = None
    declared = {value.name: value for value in (*original.graph.inputs, *original.graph.outputs)}
    for value in (*simplified.graph.inputs, *simplified.graph.outputs):
        before = declared.get(value.name)
        if before is not None:
            _restore_shape(value, before)


def _inner_values(model: ir.Model) -> list[ir.Value]:
    return [value for node in graph.all_nodes(model) for value in node.outputs if not value.is_graph_output()]


def _restore_shape(value: ir.Value, before: ir.Value) -> None:
    if before.shape is None or value.shape is None or len(before.shape) != len(value.shape):
        return
    dims = [
        old if not isinstance(new, int) or getattr(old, "value", old) is None else new
        for old, new in zip(before.shape.dims, value.shape.dims, strict=True)
    ]
    value.shape = type(before.shape)(dims)


def count_nodes(model: ir.Model) -> int:
    """Nodes that compute, subgraphs included; a Constant is a stored value, like an initializer."""
    return sum(node.op_type != "Constant" for node in graph.all_nodes(model))


def _native(path: Path) -> ir.Model:
    from deploykit.optimizers.common_subexpressions import ShareCommonSubexpressions
    from deploykit.optimizers.dead_nodes import RemoveDeadNodes
    from deploykit.optimizers.fold_constants import FoldConstants
    from deploykit.optimizers.fuse_batch_norm import FuseBatchNorm
    from deploykit.optimizers.manager import PassManager
    from deploykit.optimizers.remove_nops import RemoveNops

    model = graph.load(path)
    passes = [FoldConstants(), RemoveNops(), ShareCommonSubexpressions(), FuseBatchNorm(), RemoveDeadNodes()]
    PassManager(passes).run(model)
    return model


def _onnxsim(path: Path) -> ir.Model:
    onnxsim = require("onnxsim", "simplify", purpose="--engine onnxsim")
    # In memory, with a size limit: given paths, or without one, it writes a .data file beside its output unasked.
    simplified, _ = onnxsim.simplify(whole(path), check_n=0, tensor_size_threshold=_ONNXSIM_LARGEST)
    return graph_of(simplified)


def _onnxslim(path: Path) -> ir.Model:
    onnxslim = require("onnxslim", "simplify", purpose="--engine onnxslim")
    with contextlib.suppress(AttributeError):
        onnxslim.utils.logger.setLevel("ERROR")
    return graph_of(onnxslim.slim(whole(path)))


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


_ENGINES: dict[str, Callable[[Path], ir.Model]] = {"native": _native, "onnxsim": _onnxsim, "onnxslim": _onnxslim}
_DISTRIBUTIONS: dict[str, tuple[str, ...]] = {
    "native": ("onnx-ir", "onnxscript"),
    "onnxsim": ("onnxsim", "onnx"),
    "onnxslim": ("onnxslim", "onnx"),
}
