"""The float model for half precision: at an opset where its operators take the format."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir
from onnx import version_converter
from onnx_ir.passes import common

from deploykit import graph
from deploykit.errors import ModelError
from deploykit.quantize.half_rules import opset_for
from deploykit.quantize.prepare import load_float
from deploykit.report import Finding, note

if TYPE_CHECKING:
    from pathlib import Path

    from deploykit.quantize.half_formats import HalfFormat

# Tensors up to this size may hold axes, pads and shapes, which the version converter reads; larger ones are weights.
_MAY_BE_READ = 1024


def load_for_half(source: Path, form: HalfFormat) -> tuple[ir.Model, list[Finding]]:
    """The float model at `source`, at the lowest opset in which its operators take the format, with findings.

    Raises ModelError DK350 when the model is quantized already, DK351 when its opset cannot be raised.
    """
    model, said = load_float(source, minimum_opset=0, fold=False)
    version, wanted = graph.opset(model), opset_for(model, form)
    if not 0 < version < wanted:
        return model, said
    model = _raised(model, wanted, source)
    text = f"the opset was raised from {version} to {wanted}: from there on the operators take {form.title}"
    return model, [*said, note("DK352", text)]


def _raised(model: ir.Model, version: int, source: Path) -> ir.Model:
    """The model at a higher opset; its weights stand aside meanwhile, since a protobuf message ends at 2 GB."""
    weights: dict[str, ir.TensorProtocol] = {}
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is not None and tensor.nbytes > _MAY_BE_READ and tensor.dtype != ir.DataType.STRING:
            weights[value.name or ""] = tensor
            value.const_value = _stand_in(tensor)
    try:
        raised: ir.Model = ir.from_proto(version_converter.convert_version(ir.to_proto(model), version))
    except Exception as problem:  # the converter raises RuntimeError, ValueError and protobuf's own errors
        raise ModelError(
            f"{source.name} has opset {graph.opset(model)}, and it cannot be raised to {version}: {problem}",
            code="DK351",
            file=source,
            hint=f"export the model again with --opset {version} or higher",
        ) from problem
    raised.producer_name, raised.producer_version = model.producer_name, model.producer_version
    for name, tensor in weights.items():
        raised.graph.initializers[name].const_value = tensor
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(raised)
    graph.name_nodes(raised)
    return graph.infer_shapes(raised)


def _stand_in(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return ir.ExternalTensor(
        "weights",
        offset=0,
        length=tensor.nbytes,
        dtype=tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=tensor.name or "",
    )
