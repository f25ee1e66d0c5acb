"""Revisions of an operator, and whether a node means the same in the one before or after."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir

if TYPE_CHECKING:
    from collections.abc import Sequence

STANDARD = ("", "ai.onnx")


def revisions(op: str) -> tuple[int, ...]:
    """The opsets that revised an operator of ONNX's own domain, ascending; none for an operator it does not know."""
    return _history().get(op, ())


@functools.cache
def _history() -> dict[str, tuple[int, ...]]:
    found: dict[str, set[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if not schema.domain:
            found.setdefault(schema.name, set()).add(schema.since_version)
    return {op: tuple(sorted(since)) for op, since in found.items()}


def revision(op: str, opset: int) -> int | None:
    """The revision that an opset means; None when it does not have the operator (yet, or any more)."""
    known = [since for since in revisions(op) if since <= opset]
    if not known:
        return None
    return None if onnx.defs.get_schema(op, known[-1], "").deprecated else known[-1]


def accepts(node: ir.Node, new: int, old: int) -> bool:
    """Whether a node of revision `old` means the same in revision `new`; spells attributes out where that is needed.

    The schemas decide: attributes, inputs, outputs and types have to be there; an attribute that the other revision
    lacks has to have its default, and one whose default differs is written out. Where one schema means two things, a
    step of `opset_steps` comes first.
    """
    before, after = (onnx.defs.get_schema(node.op_type, since, "") for since in (old, new))
    if after.deprecated:
        return False
    return (
        _fit_attributes(node, before, after)
        and _fit_values(node.inputs, after.inputs, after.min_input)
        and _fit_values([v if v.name else None for v in node.outputs], after.outputs, after.min_output)
        and _fit_types(node, before, after)
    )


def _default(schema: onnx.defs.OpSchema, name: str) -> Any:
    """The default of an attribute as onnx_ir has it; None without one."""
    value = schema.attributes[name].default_value if name in schema.attributes else None
    if value is None or not value.name:
        return None
    return ir.serde.deserialize_attribute(value).value


def _fit_attributes(node: ir.Node, before: onnx.defs.OpSchema, after: onnx.defs.OpSchema) -> bool:
    for name, attribute in list(node.attributes.items()):
        if name not in after.attributes:
            if attribute.is_ref() or not _says_nothing(name, attribute.value, _default(before, name)):
                return False
            del node.attributes[name]
        elif attribute.type.value != after.attributes[name].type.value:
            return False
    for name, wanted in after.attributes.items():
        if name in node.attributes:
            continue
        default = _default(before, name)
        if default is not None and default != _default(after, name):
            node.attributes[name] = ir.convenience.convert_attribute(name, default)
        elif wanted.required:
            return False
    return True


# Attributes without a default in their schema, and what stands for one.
_NEUTRAL = {"dilations": 1}


def _says_nothing(name: str, value: Any, default: Any) -> bool:
    if default is not None:
        same: bool = value == default
        return same
    return name in _NEUTRAL and all(number == _NEUTRAL[name] for number in value)


def _fit_values(values: Sequence[ir.Value | None], formal: Sequence[Any], least: int) -> bool:
    """Whether every value has a place, and every place that must have one has a value."""
    given = max((at + 1 for at, value in enumerate(values) if value is not None), default=0)
    variadic = bool(formal) and formal[-1].option == onnx.defs.OpSchema.FormalParameterOption.Variadic
    if given < least or (given > len(formal) and not variadic):
        return False
    single = onnx.defs.OpSchema.FormalParameterOption.Single
    return all(values[at] is not None for at, parameter in enumerate(formal[:given]) if parameter.option == single)


def _fit_types(node: ir.Node, before: onnx.defs.OpSchema, after: onnx.defs.OpSchema) -> bool:
    for values, old, new in (
        (node.inputs, before.inputs, after.inputs),
        (node.outputs, before.outputs, after.outputs),
    ):
        for at, value in enumerate(values):
            if value is None or not value.name or not new:
                continue
            allowed = new[min(at, len(new) - 1)].types
            known = _type_text(value)
            if known is not None and known not in allowed:
                return False
            # Of a type that nobody knows, it is enough that the other revision takes every type that this one does.
            if known is None and not old[min(at, len(old) - 1)].types <= allowed:
                return False
    return True


def _type_text(value: ir.Value) -> str | None:
    """The type as schemas write it; None for anything but a tensor of a known type."""
    if value.type is None or not isinstance(value.type, ir.TensorType) or value.dtype is None:
        return None
    name = value.dtype.name.lower()
    return f"tensor({name})"
