"""float64 inputs and outputs as float32, for targets whose interface has no float64."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import onnx_ir as ir

from deploykit.optimizers.rewrites.emitting import STANDARD, Names
from deploykit.optimizers.rewriting import Change, Rewrite

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class FloatInterface(Rewrite):
    """The values inside keep their type behind a Cast; a Cast to or from float32 that was there already goes."""

    name: ClassVar[str] = "float-interface"
    title: ClassVar[str] = "gives and takes float32 where the model has float64 inputs and outputs"
    interface: ClassVar[bool] = True

    def applies(self, node: ir.Node, model: ir.Model) -> bool:
        """Whether it reads such an input or makes such an output."""
        return bool(_inputs(model, [node]) or _outputs(model, [node]))

    def apply(self, model: ir.Model, nodes: Sequence[ir.Node]) -> list[Change]:
        """Retypes the inputs and outputs that these nodes touch."""
        names = Names(model)
        changes = [_retype_input(model, value, names) for value in _inputs(model, nodes)]
        changes += [_retype_output(model, at, names) for at in _outputs(model, nodes)]
        return changes


def _inputs(model: ir.Model, nodes: Iterable[ir.Node]) -> list[ir.Value]:
    read = {id(value) for node in nodes for value in node.inputs if value is not None}
    return [
        value
        for value in model.graph.inputs
        if value.dtype == ir.DataType.DOUBLE and id(value) in read and not value.is_initializer()
    ]


def _outputs(model: ir.Model, nodes: Iterable[ir.Node]) -> list[int]:
    """Places of the outputs; one that is an input or a constant as well has no node that makes it."""
    made = {id(value) for node in nodes for value in node.outputs}
    return [
        at for at, value in enumerate(model.graph.outputs) if value.dtype == ir.DataType.DOUBLE and id(value) in made
    ]


def _retype_input(model: ir.Model, value: ir.Value, names: Names) -> Change:
    """Casts to float32 read the input itself now; other readers get it as float64 again."""
    gone, others = [], []
    for reader, at in list(value.uses()):
        if _casts_to(reader, ir.DataType.FLOAT) and not reader.outputs[0].is_graph_output() and reader.graph:
            reader.outputs[0].replace_all_uses_with(value)
            gone.append(reader.name or "")
            reader.graph.remove(reader, safe=True)
        elif not _casts_to(reader, None):
            others.append((reader, at))
    value.dtype = ir.DataType.FLOAT
    came = []
    if others:
        cast = _cast(value, ir.DataType.DOUBLE, names.node(f"{value.name}/double"))
        cast.outputs[0].name = names.value(f"{value.name}/double")
        for reader, at in others:
            reader.replace_input_with(at, cast.outputs[0])
        model.graph.insert_before(model.graph[0], cast)
        came.append(cast.name or "")
    return Change(tuple(gone), tuple(came), f"input {value.name!r} is float32 in place of float64")


def _retype_output(model: ir.Model, at: int, names: Names) -> Change:
    """A Cast from float32 goes where nobody else reads its result; any other output gets a Cast behind it."""
    value = model.graph.outputs[at]
    name, maker = value.name or "", value.producer()
    text = f"output {name!r} is float32 in place of float64"
    source = maker.inputs[0] if maker is not None and _casts_to(maker, ir.DataType.DOUBLE) else None
    free = source is not None and source.dtype == ir.DataType.FLOAT and source.producer() is not None
    if maker is not None and source is not None and free and not source.is_graph_output() and not value.uses():
        model.graph.outputs[at] = source
        model.graph.remove(maker, safe=True)
        value.name, source.name = None, name
        source.shape = value.shape if source.shape is None else source.shape
        return Change((maker.name or "",), (), text)
    cast = _cast(value, ir.DataType.FLOAT, names.node(f"{name}/float"))
    value.name = names.value(f"{name}/double")
    cast.outputs[0].name = name
    model.graph.append(cast)
    model.graph.outputs[at] = cast.outputs[0]
    return Change((), (cast.name or "",), text)


def _casts_to(node: ir.Node, dtype: ir.DataType | None) -> bool:
    """Whether it is a Cast to this type; None: to any."""
    if node.op_type != "Cast" or node.domain not in STANDARD:
        return False
    return dtype is None or node.attributes["to"].as_int() == dtype


def _cast(value: ir.Value, to: ir.DataType, name: str) -> ir.Node:
    node = ir.node("Cast", [value], attributes={"to": to}, name=name)
    node.outputs[0].type, node.outputs[0].shape = ir.TensorType(to), value.shape
    return node
