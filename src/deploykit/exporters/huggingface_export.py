"""The export of a Hugging Face folder: transformers' own exporter, then the names that the ecosystem uses."""

from __future__ import annotations

import contextlib
import io as memory
import logging
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter

from deploykit import graph
from deploykit.errors import DeploykitError, GateError, VendorError
from deploykit.exporters.diagnosis import in_two_lines
from deploykit.exporters.huggingface_inputs import TOTAL, present_name
from deploykit.exporters.huggingface_model import load, parameter
from deploykit.exporters.onnx_source import check_opset, to_opset
from deploykit.exporters.symbols import rename_symbols
from deploykit.exporters.torch_dynamo import LOWEST_OPSET, strip_metadata
from deploykit.exporters.torch_export import DEFAULT_OPSET
from deploykit.lazy import versions_of
from deploykit.report import Finding, note, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx_ir as ir

    from deploykit.exporters.huggingface_model import Pretrained
    from deploykit.exporters.request import HuggingfaceRequest


def export_job(request: HuggingfaceRequest, output: str, opset: int | None) -> dict[str, Any]:
    """Writes the ONNX of a Hugging Face folder at `output`; returns its facts as JSON.

    Raises what `huggingface_model.load` raises, VendorError (DK618) when transformers cannot export the model, and
    GateError (DK623) when a dimension was frozen.
    """
    if opset is not None:
        check_opset(opset)
    pretrained = load(request)
    model = _exported(pretrained, max(opset or DEFAULT_OPSET, LOWEST_OPSET))
    strip_metadata(model)
    findings = [*pretrained.findings, *_settle(model, pretrained)]
    if opset is not None and opset < LOWEST_OPSET:
        model = to_opset(model, opset)
        findings.append(note("DK629", f"opset {LOWEST_OPSET} became {opset}"))
    graph.name_nodes(model)
    files = graph.save(model, Path(output))
    inputs, outputs = graph.interface(model)
    return {
        "inputs": [spec.as_dict() for spec in inputs],
        "outputs": [spec.as_dict() for spec in outputs],
        "files": list(files),
        "opset": graph.opset(model),
        "precision": "fp32",
        "versions": versions_of("transformers", "torch", "onnxscript", "onnx-ir"),
        "findings": [finding.as_dict() for finding in findings],
        "metrics": {
            "converter": "transformers",
            "task": pretrained.task.name,
            "architecture": type(pretrained.flat.model).__name__,
            "dims": {name: [bounds.minimum, bounds.maximum] for name, bounds in pretrained.inputs.ranges.items()},
            "source_files": {},
        },
    }


def _exported(pretrained: Pretrained, opset: int) -> ir.Model:
    inputs = pretrained.inputs
    tensors = pretrained.tensors(inputs.feeds(inputs.example(), (0, 0)))
    shapes = {
        parameter(spec.name): {
            axis: torch.export.Dim.AUTO for axis, dim in enumerate(spec.shape or ()) if isinstance(dim, str)
        }
        for spec in inputs.specs
    }
    config = OnnxConfig(dynamic=True, dynamic_shapes=shapes, opset_version=opset)
    try:
        with _quiet():
            model, _ = OnnxExporter().export_program(pretrained.flat, tensors, config)
    except Exception as problem:  # torch.export, torch.onnx and transformers raise anything
        if isinstance(problem, DeploykitError):
            raise
        lines = in_two_lines(problem).splitlines()
        raise VendorError(
            f"transformers could not export {type(pretrained.flat.model).__name__} to ONNX",
            code="DK618",
            context=lines,
            log=lines,
            hint="another --task may do without that part; or write a factory around the model, and name it: "
            "model.py:factory",
        ) from problem
    exported: ir.Model = model
    return exported


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps progress and notes of the exporters off the output: what fails is raised."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with (
            contextlib.redirect_stdout(memory.StringIO()),
            contextlib.redirect_stderr(memory.StringIO()),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _settle(model: ir.Model, pretrained: Pretrained) -> list[Finding]:
    """Names, and symbols of the dimensions, as the specs have them; says which input has no influence.

    Raises GateError (DK623) for a dimension that became a number.
    """
    findings: list[Finding] = []
    values = {str(value.name): value for value in model.graph.inputs}
    symbols: dict[str, str] = {}
    for spec in pretrained.inputs.specs:
        value = values.get(parameter(spec.name))
        if value is None:
            text = f"input {spec.name!r} has no influence on the outputs and is not in the ONNX"
            findings.append(warning("DK619", text, tensor=spec.name))
            continue
        value.name = spec.name
        for axis, (wanted, got) in enumerate(zip(spec.shape or (), value.shape or (), strict=True)):
            if isinstance(wanted, str) and isinstance(got, int):
                raise GateError(
                    f"dimension {wanted!r} (axis {axis} of input {spec.name!r}) became the constant {got}",
                    code="DK623",
                    tensor=spec.name,
                    hint=f"the model computes with this size as a number: --dim {wanted}={got} exports it so",
                )
            if isinstance(wanted, str) and "+" not in wanted:
                symbols[_symbol(got)] = wanted
            elif isinstance(wanted, str):
                symbols.setdefault(_symbol(got), "total_sequence_length")
    rename_symbols(model, symbols)
    _write_sums(model, pretrained)
    return findings


def _symbol(dim: Any) -> str:
    return str(getattr(dim, "value", dim))


def _write_sums(model: ir.Model, pretrained: Pretrained) -> None:
    """Dimensions that are cache and sequence together, in the one form that others know: as the mask has it."""
    import onnx_ir

    wanted = {spec.name: spec.shape for spec in pretrained.inputs.specs}
    for value in model.graph.inputs:
        shape = wanted.get(str(value.name)) or ()
        if any(isinstance(dim, str) and "+" in dim for dim in shape):
            value.shape = onnx_ir.Shape(list(shape))
    mask = wanted.get("attention_mask")
    total = mask[1] if mask else TOTAL
    caches = {present_name(n, part) for n in range(pretrained.flat.layers) for part in ("key", "value")}
    for value in model.graph.outputs:
        if value.name in caches and value.shape is not None and not isinstance(value.shape[2], int):
            dims: list[Any] = list(value.shape.dims)
            dims[2] = total
            value.shape = onnx_ir.Shape(dims)
