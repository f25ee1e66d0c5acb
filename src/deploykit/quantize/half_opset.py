"""The float model for half precision: at an opset where its operators take the format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx_ir.passes import common

from deploykit import graph
from deploykit.quantize.half_rules import opset_for
from deploykit.quantize.prepare import load_float, raise_opset
from deploykit.report import Finding, note

if TYPE_CHECKING:
    from pathlib import Path

    import onnx_ir as ir

    from deploykit.quantize.half_formats import HalfFormat


def load_for_half(source: Path, form: HalfFormat) -> tuple[ir.Model, list[Finding]]:
    """The float model at `source`, at the lowest opset in which its operators take the format, with findings.

    Raises ModelError DK350 when the model is quantized already, DK351 when its opset cannot be raised.
    """
    model, said = load_float(source, minimum_opset=0, fold=False)
    version, wanted = graph.opset(model), opset_for(model, form)
    if not 0 < version < wanted:
        return model, said
    model = raise_opset(model, wanted, source)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    graph.name_nodes(model)
    model = graph.infer_shapes(model)
    text = f"the opset was raised from {version} to {wanted}: from there on the operators take {form.title}"
    return model, [*said, note("DK352", text)]
