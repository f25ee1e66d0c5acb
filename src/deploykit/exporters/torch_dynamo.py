"""torch.onnx's exporter on torch.export: opset 18 and up, keeps dimensions symbolic and says where it cannot."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch

from deploykit.exporters.torch_flat import unwrap_names

if TYPE_CHECKING:
    from pathlib import Path

    import onnx_ir as ir

    from deploykit.exporters.torch_call import Call
    from deploykit.exporters.torch_source import Loaded
    from deploykit.exporters.torch_translations import Tables

# PyTorch 2.13, asked for a lower one, reports success and writes 18 (pytorch PR#161056).
LOWEST_OPSET = 18
# Source text, code lines and absolute paths of the machine: not reproducible, and nobody else's business. The module
# scopes (`namespace`, `pkg.torch.onnx.name_scopes`, `pkg.torch.onnx.class_hierarchy`) stay: they name a node's origin.
_DROPPED = ("pkg.torch.onnx.stack_trace", "pkg.torch.onnx.fx_node", "pkg.torch.export.", "pkg.onnxscript.")


def export_dynamo(loaded: Loaded, call: Call, opset: int, scratch: Path, tables: Tables) -> ir.Model:
    """The module as an ONNX graph; raises what torch.onnx raises."""
    del scratch
    target, args, kwargs = call.for_export(loaded)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations inside torch itself, on every call
        program = torch.onnx.export(
            target,
            args,
            kwargs=kwargs or None,
            input_names=[spec.name for spec in call.specs],
            output_names=list(call.output_names),
            opset_version=opset,
            dynamo=True,
            external_data=False,
            dynamic_shapes=None if loaded.program is not None else dynamic_shapes(call),
            custom_translation_table=tables[0] or None,
            verbose=False,
        )
    if program is None:
        raise RuntimeError("torch.onnx.export returned nothing")
    model: ir.Model = program.model
    strip_metadata(model)
    if not call.plain:
        unwrap_names(model)
    return model


def dynamic_shapes(call: Call) -> dict[str, Any] | None:
    """By parameter of forward; one Dim for each symbol, so that a symbol used twice ties both dimensions."""
    if not call.symbols:
        return None
    dims = {
        name: torch.export.Dim(name, min=max(bounds.minimum, 1), max=bounds.maximum)
        for name, bounds in call.symbols.items()
    }
    shapes = [
        {axis: dims[dim] for axis, dim in enumerate(spec.shape or ()) if isinstance(dim, str)} for spec in call.specs
    ]
    return dict(zip(call.parameters, shapes, strict=True)) if call.plain else {"tensors": tuple(shapes)}


def strip_metadata(model: ir.Model) -> None:
    """Takes away source text, code lines and paths of the machine, everywhere in the graph."""
    _drop(model.metadata_props)
    for graph in model.graphs():
        _drop(graph.metadata_props)
        graph.doc_string = None
        for value in (*graph.inputs, *graph.initializers.values()):
            _drop(value.metadata_props)
        for node in graph:
            _drop(node.metadata_props)
            node.doc_string = None
            for value in node.outputs:
                _drop(value.metadata_props)
    for function in model.functions.values():
        _drop(function.metadata_props)
        for node in function:
            _drop(node.metadata_props)
            node.doc_string = None


def _drop(metadata: Any) -> None:
    for key in [key for key in metadata if key.startswith(_DROPPED)]:
        del metadata[key]
