"""Inputs and outputs of an exported graph as the user called them: none missing, open dimensions by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from deploykit import graph
from deploykit.exporters.symbols import rename_symbols
from deploykit.exporters.torch_call import example_sizes, resized
from deploykit.exporters.torch_flat import flatten
from deploykit.report import Finding, note

if TYPE_CHECKING:
    from collections.abc import Collection

    from deploykit.exporters.torch_call import Call


def settle_interface(model: ir.Model, call: Call) -> list[Finding]:
    """Gives the inputs their order and the symbols that the user wrote; inputs that exporters drop are put back."""
    findings: list[Finding] = []
    made = {spec.name: spec for spec in graph.interface(model)[0]}
    values = {str(value.name): value for value in model.graph.inputs}
    used = {id(value) for node in graph.all_nodes(model) for value in node.inputs if value is not None}
    used |= {id(value) for value in model.graph.outputs}
    renamed: dict[str, str] = {}
    for spec in call.specs:
        value = values.get(spec.name)
        if value is None:
            dtype = ir.DataType[spec.dtype.upper().replace("FLOAT32", "FLOAT").replace("FLOAT64", "DOUBLE")]
            value = ir.Value(name=spec.name, type=ir.TensorType(dtype), shape=ir.Shape(list(spec.shape or ())))
            values[spec.name] = value
        elif id(value) in used:
            pairs = zip(spec.shape or (), made[spec.name].shape or (), strict=False)
            renamed |= {
                got: wanted
                for wanted, got in pairs
                if isinstance(wanted, str) and isinstance(got, str) and wanted != got
            }
            continue
        text = f"input {spec.name!r} has no influence on the outputs; it stays an input of the ONNX"
        findings.append(note("DK619", text, tensor=spec.name))
    others = [value for name, value in values.items() if name not in {spec.name for spec in call.specs}]
    model.graph.inputs.clear()
    model.graph.inputs.extend([*(values[spec.name] for spec in call.specs), *others])
    if renamed:
        rename_symbols(model, renamed)
    return findings


def settle_outputs(model: ir.Model, call: Call) -> None:
    """Opens the sizes of outputs that an exporter wrote as the example's numbers and that follow the inputs.

    Where it did, the sizes that it wrote of inner values are as little to be trusted: they are left out.
    Runs the module at a second set of sizes; where it takes none, the outputs' shapes are left as they are.
    """
    symbols = call.symbols
    first = {dim: size for spec in call.specs for dim, size in _sizes(call, spec.name)}
    second = example_sizes(symbols, {}, avoid=first)
    if not symbols or second == first:
        return
    try:
        shapes = [
            [tuple(leaf.shape) for _, leaf in flatten(call.call(tensors))]
            for tensors in (call.example, resized(call, second))
        ]
    except Exception:  # a size that the module does not take: the proof says so
        return
    corrected = False
    runs = dict(zip(call.output_names, zip(*shapes, strict=True), strict=True))
    for value in model.graph.outputs:
        one, two = runs.get(str(value.name), ((), ()))
        if value.shape is None or not len(value.shape) == len(one) == len(two):
            continue
        dims: list[Any] = list(value.shape.dims)
        for axis, (a, b) in enumerate(zip(one, two, strict=True)):
            if a == b:
                if _is_made_up(dims[axis], symbols):
                    dims[axis] = f"{value.name}_{axis}"  # instead of the exporter's own, made of its inner names
                continue
            same = [name for name in symbols if (first[name], second[name]) == (a, b)]
            corrected |= isinstance(dims[axis], int)
            if same or isinstance(dims[axis], int) or _is_made_up(dims[axis], symbols):
                dims[axis] = same[0] if same else f"{value.name}_{axis}"
        value.shape = ir.Shape(dims)
    if corrected:
        for node in graph.all_nodes(model):
            for value in node.outputs:
                if not value.is_graph_output():
                    value.shape = None


def _is_made_up(dim: Any, symbols: Collection[str]) -> bool:
    """Whether it is a name that an exporter made of its inner names, and no expression of the symbols."""
    return (
        isinstance(dim, ir.SymbolicDim)
        and bool(dim.value)
        and str(dim.value).isidentifier()
        and dim.value not in symbols
    )


def _sizes(call: Call, name: str) -> list[tuple[str, int]]:
    spec = next(spec for spec in call.specs if spec.name == name)
    pairs = zip(spec.shape or (), call.example[name].shape, strict=True)
    return [(dim, int(size)) for dim, size in pairs if isinstance(dim, str)]
