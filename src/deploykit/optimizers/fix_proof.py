"""Whether a fixed model still is the same one; runs both, so it is called in a worker."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from onnx import defs

from deploykit import graph, io
from deploykit.equivalence import compare_models
from deploykit.errors import VendorError
from deploykit.graph.signature import dtype_name
from deploykit.progress import OnProgress, silent
from deploykit.reference import Reference

if TYPE_CHECKING:
    from deploykit.runtime import Feeds, Outputs

# The standard's own definitions run in Python: with more elements than this a convolution takes minutes.
_LARGEST_WEIGHTS = 4_000_000
# Before this opset broadcasting was another.
_OLDEST = 7


def prove_job(
    original: str,
    candidate: str,
    *,
    bound: str,
    requantized: list[str],
    retyped: bool,
    dims: dict[str, list[int | None]],
    seed: int,
    on_progress: OnProgress = silent,
) -> dict[str, Any]:
    """`equivalence.compare_models`; retyped: the candidate may have other dtypes at its inputs and outputs.

    Returns its result and "interface": what was retyped, as [name, before, after].
    """
    with io.scratch_folder() as folder:
        path, changed = Path(candidate), []
        if retyped:
            loaded = graph.load(path)
            changed = _restore_types(loaded, graph.load(Path(original)))
            if changed:
                path = Path(folder) / path.name
                graph.save(loaded, path)
        result = compare_models(
            Path(original),
            path,
            dims=dims,
            seed=seed,
            bound=bound,
            requantized=requantized,
            opener=_open,
            on_progress=on_progress,
        )
    return {**result, "interface": changed}


def _open(path: Path) -> Reference:
    """onnxruntime, or for a model that it refuses, which may be what is being fixed, what means the same.

    That is the model with a name of its own for each node; in an older opset, where only the types that operators take
    have changed since; or by the standard's own definitions.
    """
    try:
        return Reference(path)
    except VendorError as problem:
        loaded = graph.name_nodes(graph.load(path))
        for version in (graph.opset(loaded), *_same_meaning(loaded)):
            loaded.opset_imports[""] = version
            with io.scratch_folder() as folder, contextlib.suppress(VendorError):
                graph.save(loaded, Path(folder) / path.name)
                return Reference(Path(folder) / path.name)
        return _ByDefinition(path, problem)


def _same_meaning(model: ir.Model) -> list[int]:
    """Older opsets, newest first, in which every operator of the model is defined by the same words."""
    now = graph.opset(model)
    used = {node.op_type for node in graph.all_nodes(model) if node.domain in ("", "ai.onnx")}
    versions = range(now - 1, _OLDEST - 1, -1)
    return next(([v] for v in versions if all(_definition(op, v) == _definition(op, now) for op in used)), [])


def _definition(op: str, opset: int) -> tuple[Any, ...] | None:
    """What the standard says of an operator, types apart; None when it does not have it."""
    try:
        schema = defs.get_schema(op, max_inclusive_version=opset)
    except defs.SchemaError:
        return None
    names = [formal.name for formal in (*schema.inputs, *schema.outputs)]
    attributes = sorted((name, str(a.default_value), a.required) for name, a in schema.attributes.items())
    return ("".join(schema.doc.split()), names, attributes)


class _ByDefinition(Reference):
    """A model run by `onnx.reference`, node by node in Python."""

    def __init__(self, model: Path, refusal: VendorError) -> None:
        from onnx.reference import ReferenceEvaluator

        loaded = graph.load(model)
        weights = sum(value.const_value.size for value in loaded.graph.initializers.values() if value.const_value)
        if weights > _LARGEST_WEIGHTS:
            raise refusal
        self.inputs, self.outputs = graph.interface(loaded)
        try:
            self._evaluator = ReferenceEvaluator(ir.to_proto(loaded))
        except Exception as problem:  # whatever it lacks: what onnxruntime said is the better reason
            raise refusal from problem

    def predict(self, feeds: Feeds) -> Outputs:
        """Outputs by name; VendorError when it does not run."""
        try:
            results = self._evaluator.run(None, dict(feeds))
        except Exception as problem:  # numpy's and the evaluator's own errors
            raise VendorError(f"the standard's definitions fail on it: {problem}") from problem
        return {spec.name: np.asarray(result) for spec, result in zip(self.outputs, results, strict=True)}

    def close(self) -> None:
        """Nothing is kept open."""


def _restore_types(candidate: ir.Model, original: ir.Model) -> list[list[str]]:
    """Puts casts around the candidate's interface where its dtypes differ, so that both can be fed alike."""
    before = {value.name: value for value in (*original.graph.inputs, *original.graph.outputs)}
    changed = []
    body = candidate.graph
    for value in list(body.inputs):
        old = before.get(value.name)
        if old is None or old.dtype is None or value.dtype is None or old.dtype == value.dtype:
            continue
        changed.append([value.name or "", dtype_name(old.dtype), dtype_name(value.dtype)])
        inner = _cast(body, value, value.dtype, f"retyped/{value.name}", first=True)
        value.replace_all_uses_with(inner, replace_graph_outputs=True)
        producer = inner.producer()
        if producer is not None:
            producer.replace_input_with(0, value)
        value.dtype = old.dtype
    for at, value in enumerate(list(body.outputs)):
        old = before.get(value.name)
        if old is None or old.dtype is None or value.dtype is None or old.dtype == value.dtype:
            continue
        changed.append([value.name or "", dtype_name(old.dtype), dtype_name(value.dtype)])
        name, value.name = value.name, f"retyped/{value.name}"
        outer = _cast(body, value, old.dtype, name or "", first=False)
        body.outputs[at] = outer
    return changed


def _cast(body: ir.Graph, value: ir.Value, to: ir.DataType, name: str, *, first: bool) -> ir.Value:
    node = ir.node("Cast", [value], attributes={"to": to}, name=f"{name}/cast")
    made = node.outputs[0]
    made.name, made.dtype, made.shape = name, to, value.shape
    if first and len(body):
        body.insert_before(body[0], node)
    else:
        body.append(node)
    return made
