"""The TensorFlow worker's export: tf2onnx, the opset that was asked for, the model's own names, reproducible bytes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from deploykit import graph, io
from deploykit.data import DimRange, open_data
from deploykit.equivalence import unknown_nodes
from deploykit.errors import GateError, ModelError, UsageError
from deploykit.exporters import layout, tensorflow_source
from deploykit.exporters.canonical import make_canonical
from deploykit.exporters.onnx_source import to_opset
from deploykit.exporters.tensorflow_graph import HIGHEST_OPSET
from deploykit.lazy import versions_of
from deploykit.report import Finding, note

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from deploykit.artifact import TensorSpec
    from deploykit.exporters.request import TensorflowRequest
    from deploykit.exporters.tensorflow_graph import Port
    from deploykit.exporters.tensorflow_source import LoadedSource

LOWEST_OPSET = 9
_SHOWN = 8
_IMAGE_RANK = 4
# Where a model starts to take an image or a sequence: each is tried until one runs.
SMALLEST = (1, 16, 64, 224)


def export_job(request: TensorflowRequest, output: str, opset: int | None) -> dict[str, Any]:
    """Writes the ONNX of a TensorFlow source at `output`; returns its facts as JSON.

    Raises GateError (DK653) naming the operators that have no ONNX form, VendorError (DK651) when tf2onnx fails,
    ModelError or UsageError for the source.
    """
    if opset is not None and opset < LOWEST_OPSET:
        raise UsageError(
            f"tf2onnx starts at opset {LOWEST_OPSET}, and {opset} was asked for",
            code="DK612",
            hint=f"--opset {HIGHEST_OPSET}",
        )
    source = tensorflow_source.load(request)
    model = ir.from_proto(source.model.convert(min(opset or HIGHEST_OPSET, HIGHEST_OPSET)))
    _refuse_unsupported(model, Path(request["path"]))
    _tidy(model)
    make_canonical(model)
    findings = _settle_inputs(model, source)
    if opset is not None and opset > HIGHEST_OPSET:
        model = to_opset(model, opset)
        findings.append(note("DK629", f"tf2onnx wrote opset {HIGHEST_OPSET}, which became {opset}"))
    if opset is not None and graph.opset(model) != opset:
        raise ModelError(f"tf2onnx wrote opset {graph.opset(model)} where {opset} was asked for", code="DK612")
    _settle_outputs(model, source, request["seed"])
    inputs, outputs = graph.interface(model)
    layouts = layouts_of(source, (*inputs, *outputs))
    turned = layout.changed(request.get("layout", {}), layouts, (*inputs, *outputs))
    layout.apply(model, turned)
    graph.name_nodes(model)
    files = graph.save(model, Path(output))
    inputs, outputs = graph.interface(model)
    layouts |= turned
    return {
        "inputs": [spec.as_dict() for spec in inputs],
        "outputs": [spec.as_dict() for spec in outputs],
        "files": list(files),
        "opset": graph.opset(model),
        "precision": graph.precision_of(model),
        "versions": versions_of("tensorflow", "tensorflow-cpu", "keras", "tf2onnx", "onnx-ir"),
        "findings": [finding.as_dict() for finding in (*findings, *_said(source, layouts, turned))],
        "metrics": {
            "converter": "tf2onnx",  # "exporter" is the option, which only PyTorch has
            "dims": {name: [bounds.minimum, bounds.maximum] for name, bounds in source.symbols.items()},
            "layout": layouts,
            "turned": turned,
            "source_files": {},
        },
    }


def _refuse_unsupported(model: ir.Model, path: Path) -> None:
    """Raises GateError (DK653): tf2onnx leaves what it cannot convert in the graph, under TensorFlow's name."""
    left = unknown_nodes(model)
    if not left:
        return
    names = list(dict.fromkeys(node.op_type for node in left))
    raise GateError(
        f"{path.name} has operators without an ONNX form: {', '.join(names[:_SHOWN])}",
        code="DK653",
        file=path,
        node=left[0].name,
        op=left[0].op_type,
        context=[f"{node.op_type}: {node.name}" for node in left[:_SHOWN]],
        hint="keep this part (text processing, tables) in front of the model, and export the rest",
    )


def _tidy(model: ir.Model) -> None:
    """Takes away what tf2onnx numbers anew in each process, and domains that nothing uses."""
    used = {node.domain or "" for node in graph.all_nodes(model)} | {""}
    for domain in [domain for domain in model.opset_imports if domain not in used]:
        del model.opset_imports[domain]
    model.graph.name, model.doc_string, model.graph.doc_string = "main", None, None
    for node in graph.all_nodes(model):
        for value in node.outputs:
            if value.shape is not None and not all(isinstance(dim, int) for dim in value.shape.dims):
                value.shape = None  # its symbols are tf2onnx's own numbers; shape inference gives them names again


def _settle_inputs(model: ir.Model, source: LoadedSource) -> list[Finding]:
    """Inputs in the source's order, with the names of its dimensions; says which one is missing."""
    by_name = {value.name: value for value in model.graph.inputs}
    found = []
    for spec in source.specs:
        value = by_name.get(spec.name)
        if value is None:
            dtype = ir.DataType.from_numpy(np.dtype(spec.dtype)) if spec.dtype != "string" else ir.DataType.STRING
            value = ir.Value(name=spec.name, type=ir.TensorType(dtype))
            model.graph.inputs.append(value)
        if not list(value.uses()) and not value.is_graph_output():
            text = f"input {spec.name!r} has no influence on the outputs; it stays an input of the ONNX"
            found.append(note("DK619", text, tensor=spec.name))
        value.shape = ir.Shape(list(spec.shape or ()))
    order = {spec.name: at for at, spec in enumerate(source.specs)}
    ordered = sorted(model.graph.inputs, key=lambda value: order.get(str(value.name), len(order)))
    model.graph.inputs.clear()
    model.graph.inputs.extend(ordered)
    return found


def _settle_outputs(model: ir.Model, source: LoadedSource, seed: int) -> None:
    """Gives each output the sizes that its source declares, and the open ones a name: the input's where it is that."""
    ports = {port.name: port for port in source.model.outputs}
    runs = _two_runs(model, source, seed)
    for value in model.graph.outputs:
        port = ports[str(value.name)]
        if port.shape is None:
            value.shape = None
            continue
        spec = tensorflow_source.spec_of(dataclasses.replace(port, shape=(0, *port.shape[1:])))
        shape = [_size(axis, port, spec, source, runs) for axis in range(len(port.shape))]
        value.shape = ir.Shape(shape)


def _size(
    axis: int, port: Port, spec: TensorSpec, source: LoadedSource, runs: list[tuple[dict[str, int], dict[str, Any]]]
) -> int | str | None:
    """One size of an output: declared, or the symbol that it followed in both runs, or a number that never varied."""
    if port.shape is None or port.shape[axis] is not None:
        return port.shape[axis] if port.shape else None
    seen = [(sizes, outputs[port.name].shape[axis]) for sizes, outputs in runs if port.name in outputs]
    for name in source.symbols:
        if seen and all(sizes[name] == size for sizes, size in seen):
            return name
    if seen and not source.symbols:
        return int(seen[0][1])
    fixed = [dim for given in source.specs for dim in given.shape or () if isinstance(dim, int)]
    if seen and len({size for _, size in seen}) == 1 and seen[0][1] in fixed and axis == 0:
        return int(seen[0][1])
    made = spec.shape[axis] if spec.shape else None
    return made if isinstance(made, str) else f"{port.name}_{axis}"


def _two_runs(model: ir.Model, source: LoadedSource, seed: int) -> list[tuple[dict[str, int], dict[str, Any]]]:
    """Sizes and the source's outputs of two calls whose sizes all differ; fewer where it refuses them."""
    with io.scratch_folder() as folder:
        path = Path(folder) / "model.onnx"
        graph.save(model, path)
        for smallest in SMALLEST:
            runs = []
            for sizes in (example_sizes(source.symbols, smallest, 0), example_sizes(source.symbols, smallest, 1)):
                bounds = {name: DimRange(name, size, size) for name, size in sizes.items()}
                (sample,) = open_data(
                    f"random:{seed}", source.specs, purpose="parity", samples=1, dims=bounds, model=path
                )
                try:
                    runs.append((sizes, source.model.run(sample.feeds)))
                except Exception:  # a size that the model does not take; the next ones may fit
                    break
            if len(runs) == 2:
                return runs
    return []


def example_sizes(symbols: Mapping[str, DimRange], smallest: int, turn: int) -> dict[str, int]:
    """A size for each symbol from `smallest` up, all different and other ones in each turn, where the ranges allow."""
    sizes: dict[str, int] = {}
    for at, (name, bounds) in enumerate(symbols.items()):
        wanted = max(bounds.minimum, 1 if name == "batch" else smallest) + 1 + 2 * at + 7 * turn
        sizes[name] = wanted if bounds.maximum is None else min(wanted, bounds.maximum - turn)
    return {name: max(size, symbols[name].minimum) for name, size in sizes.items()}


def layouts_of(source: LoadedSource, specs: Iterable[TensorSpec]) -> dict[str, str]:
    """The layout of each image tensor, as in the source."""
    found = source.model.layout()
    return {spec.name: found for spec in specs if found and spec.shape and len(spec.shape) == _IMAGE_RANK}


def _said(source: LoadedSource, layouts: Mapping[str, str], turned: Mapping[str, str]) -> list[Finding]:
    found = []
    kept, new = (
        ", ".join(f"{name} {kind.upper()}" for name, kind in layouts.items() if (name in turned) == is_new)
        for is_new in (False, True)
    )
    if new:
        found.append(note("DK691", f"image tensors got another layout than the source's: {new}"))
    if kept:
        found.append(note("DK654", f"image tensors keep the source's layout: {kept}", hint="--layout changes it"))
    specs = layout.layout_specs(source.specs, turned)
    opened = [spec for spec in specs if any(isinstance(dim, str) for dim in spec.shape or ())]
    if opened:
        shown = "; ".join(f"{spec.name} {spec.describe()}" for spec in opened)
        found.append(note("DK655", f"open dimensions are symbolic: {shown}"))
    return found
