"""float64 as float32 in the whole model, behind an interface that stays as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx_ir as ir

from deploykit.optimizers.rewrites.emitting import Names
from deploykit.optimizers.rewriting import Change, Rewrite

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_KNOWN_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
# Attributes that name the type of a result.
_TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype", "output_datatype", "stash_type")
_LARGEST = float(np.finfo(np.float32).max)


class DoubleToFloat(Rewrite):
    """Constants, attributes and every value in between; inputs and outputs keep float64, with a Cast beside them.

    All or nothing: operators want one float type, so one node alone would need a Cast at each edge. A model with a
    constant beyond float32's range, or with float64 in an operator that nobody knows, stays as it is.
    """

    name: ClassVar[str] = "double-to-float"
    title: ClassVar[str] = "computes in float32 what was float64"
    keeps_operator: ClassVar[bool] = True

    def applies(self, node: ir.Node, model: ir.Model) -> bool:
        """Whether the node has to do with float64; `apply` looks at the whole model."""
        return _has_double(node) and node.domain in _known_domains(model)

    def apply(self, model: ir.Model, nodes: Sequence[ir.Node]) -> list[Change]:
        """Converts the model; one Change, since it is one step."""
        if not any(_has_double(node) for node in nodes) or not _is_possible(model):
            return []
        names = Names(model)
        kept = {id(value) for value in _interface(model)}
        outputs = [at for at, value in enumerate(model.graph.outputs) if value.dtype == ir.DataType.DOUBLE]
        count = 0
        for part in _graphs(model):
            for value in _values(part):
                if id(value) not in kept and value.dtype == ir.DataType.DOUBLE:
                    _retype(value)
                    count += 1
            for node in part:
                _convert_attributes(node)
        casts = [*_cast_inputs(model, names), *_cast_outputs(model, names, outputs)]
        beside = f"; a Cast beside {', '.join(repr(name) for name, _ in casts)}, whose type stays" if casts else ""
        text = f"float64 as float32 in {count} tensors{beside}"
        return [Change((), tuple(cast.name or "" for _, cast in casts), text)]


def _graphs(model: ir.Model) -> Iterator[ir.Graph]:
    yield from model.graphs()
    for function in model.functions.values():
        yield function.graph
        yield from function.subgraphs()


def _values(part: ir.Graph) -> Iterator[ir.Value]:
    yield from part.inputs
    yield from part.initializers.values()
    for node in part:
        yield from node.outputs


def _interface(model: ir.Model) -> list[ir.Value]:
    """Inputs, and outputs that are initializers: they keep their type, and their readers get a Cast."""
    fixed = [value for value in model.graph.outputs if value.is_initializer()]
    return [*model.graph.inputs, *(value for value in fixed if not value.is_graph_input())]


def _has_double(node: ir.Node) -> bool:
    values = [*node.inputs, *node.outputs]
    if any(value is not None and value.dtype == ir.DataType.DOUBLE for value in values):
        return True
    return any(_is_double(attribute) for attribute in node.attributes.values())


def _is_double(attribute: ir.Attr) -> bool:
    if attribute.is_ref():
        return False
    if attribute.type == ir.AttributeType.TENSOR:
        return bool(attribute.as_tensor().dtype == ir.DataType.DOUBLE)
    return attribute.name in _TYPE_ATTRIBUTES and attribute.value == int(ir.DataType.DOUBLE)


def _known_domains(model: ir.Model) -> set[str]:
    return {*_KNOWN_DOMAINS, *(function.domain for function in model.functions.values())}


def _is_possible(model: ir.Model) -> bool:
    known = _known_domains(model)
    for value in (*model.graph.inputs, *model.graph.outputs):
        if value.dtype == ir.DataType.DOUBLE and not isinstance(value.type, ir.TensorType):
            return False
    for part in _graphs(model):
        for value in part.initializers.values():
            if value.dtype == ir.DataType.DOUBLE and (value.const_value is None or not _fits(value.const_value)):
                return False
        for node in part:
            if node.domain not in known and _has_double(node):
                return False
            for attribute in node.attributes.values():
                if _is_sparse(attribute) or (
                    attribute.type == ir.AttributeType.TENSOR
                    and _is_double(attribute)
                    and not _fits(attribute.as_tensor())
                ):
                    return False
    return True


def _is_sparse(attribute: ir.Attr) -> bool:
    return attribute.type in (ir.AttributeType.SPARSE_TENSOR, ir.AttributeType.SPARSE_TENSORS)


def _fits(tensor: ir.TensorProtocol) -> bool:
    """Whether no finite value leaves the range of float32."""
    values = tensor.numpy()
    finite = values[np.isfinite(values)]
    return not finite.size or float(np.abs(finite).max()) <= _LARGEST


def _retype(value: ir.Value) -> None:
    if value.const_value is not None:
        value.const_value = _narrowed(value.const_value)
    value.dtype = ir.DataType.FLOAT


def _narrowed(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return ir.tensor(tensor.numpy().astype(np.float32), name=tensor.name)


def _convert_attributes(node: ir.Node) -> None:
    for name, attribute in list(node.attributes.items()):
        if not _is_double(attribute):
            continue
        changed: ir.Attr
        if attribute.type == ir.AttributeType.TENSOR:
            changed = ir.AttrTensor(name, _narrowed(attribute.as_tensor()))
        else:
            changed = ir.AttrInt64(name, int(ir.DataType.FLOAT))
        node.attributes[name] = changed


def _cast(value: ir.Value, name: str, to: ir.DataType, names: Names, beside: ir.Node | None) -> ir.Node:
    node = ir.node("Cast", [value], attributes={"to": to}, name=names.node(f"{name}/Cast"))
    node.outputs[0].type, node.outputs[0].shape = ir.TensorType(to), value.shape
    if beside is not None:
        node.metadata_props.update(beside.metadata_props)
    return node


def _cast_inputs(model: ir.Model, names: Names) -> list[tuple[str, ir.Node]]:
    made = []
    for value in _interface(model):
        uses: list[Any] = list(value.uses())
        if value.dtype != ir.DataType.DOUBLE or not uses:
            continue
        cast = _cast(value, value.name or "input", ir.DataType.FLOAT, names, uses[0][0])
        cast.outputs[0].name = names.value(f"{value.name}/float")
        for reader, at in uses:
            reader.replace_input_with(at, cast.outputs[0])
        _first(model.graph, cast)
        made.append((value.name or "", cast))
    return made


def _first(owner: ir.Graph, node: ir.Node) -> None:
    if len(owner):
        owner.insert_before(owner[0], node)
    else:
        owner.append(node)


def _cast_outputs(model: ir.Model, names: Names, places: Sequence[int]) -> list[tuple[str, ir.Node]]:
    """What was a float64 output is float32 now, under another name; its Cast has the name."""
    kept = {id(value) for value in _interface(model)}
    made = []
    for at in places:
        value = model.graph.outputs[at]
        if id(value) in kept:
            continue
        name = value.name or ""
        cast = _cast(value, name, ir.DataType.DOUBLE, names, value.producer())
        value.name = names.value(f"{name}/float")
        cast.outputs[0].name = name
        model.graph.append(cast)
        model.graph.outputs[at] = cast.outputs[0]
        made.append((name, cast))
    return made
