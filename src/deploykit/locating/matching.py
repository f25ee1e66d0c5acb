"""Which tensor of the candidate stands for which of the reference: by name, between ONNX graphs by lineage, too."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.graph.extraction import read_by
from deploykit.graph.signature import constant_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    import onnx_ir as ir

# Constants up to this size are looked at to tell namesakes in structure apart.
_LARGEST = 1 << 22


def without_renumbered(found: Mapping[str, str], reference: ir.Model, candidate: ir.Model) -> dict[str, str]:
    """Matches by name, without those of numbers that another operator now carries: some tools number tensors anew."""
    before = {value.name: node.op_type for node in reference.graph for value in node.outputs}
    after = {value.name: node.op_type for node in candidate.graph for value in node.outputs}
    return {name: own for name, own in found.items() if not name.isdigit() or before.get(name) == after.get(own)}


def by_lineage(
    reference: ir.Model, candidate: ir.Model, known: Mapping[str, str], named: Collection[str]
) -> dict[str, str]:
    """Further matches between two ONNX graphs: {reference's tensor: candidate's}.

    Two nodes are the same one when they have the same operator and read the same: tensors that match, and constants of
    the same type and shape; among several, when they have the same name or equal constants, otherwise in order.
    known: matches so far. named: names of nodes that the models had themselves; a node of the same name and operator
    is the same one, too, unless it reads a tensor that matches one which the other does not read.
    """
    taken = set(known)
    meant: dict[str | None, str | None] = {own: name for name, own in known.items()}
    meant |= {value.name: value.name for value in reference.graph.inputs if value.name}
    by_name = {node.name: node for node in reference.graph if node.name in named}
    by_form: dict[Any, list[ir.Node]] = collections.defaultdict(list)
    for node in reference.graph:
        by_form[_form(node, {value.name: value.name for value in read_by(node)})].append(node)
    found: dict[str, str] = {}
    for node in candidate.graph:
        if all(value.name in meant for value in node.outputs if value.name):
            continue
        twin = _twin(node, by_form.get(_form(node, meant), []), taken)
        if twin is None and node.name in by_name:
            other = by_name[node.name]
            twin = other if other.op_type == node.op_type and _may_read(node, other, meant) else None
        for ours, theirs in zip(twin.outputs if twin else (), node.outputs, strict=False):
            if ours.name and theirs.name and ours.name not in taken and theirs.name not in meant:
                found[ours.name] = theirs.name
                meant[theirs.name] = ours.name
                taken.add(ours.name)
    return found


def differences(reference: Sequence[ir.Node], candidate: ir.Node) -> list[str]:
    """What two nodes differ in that should be the same: operator, attributes, constants; in words.

    reference: the steps that make the tensor, the candidate's counterpart the last of them.
    """
    last = reference[-1]
    if last.op_type != candidate.op_type or len(last.inputs) != len(candidate.inputs):
        return [f"the candidate computes it by {candidate.op_type}, the reference by {last.op_type}"]
    lines = []
    for name in sorted({*last.attributes, *candidate.attributes}):
        ours, theirs = _attribute(last, name), _attribute(candidate, name)
        if ours != theirs:
            lines.append(f"attribute {name} is {_short(theirs)}, {_short(ours)} in the reference")
    for place, (ours, theirs) in enumerate(zip(last.inputs, candidate.inputs, strict=True)):
        first, second = constant_of(ours), constant_of(theirs)
        if first is None or second is None:
            continue
        line = _constants(ours.name if ours is not None else "", place, first, second)
        lines += [line] if line else []
    return lines


def _constants(name: str | None, place: int, first: Any, second: Any) -> str:
    a, b = first.numpy(), second.numpy()
    what = f"constant {name!r} (input {place})"
    if a.shape != b.shape:
        return f"{what} has shape {list(b.shape)}, {list(a.shape)} in the reference"
    if a.dtype != b.dtype:
        return f"{what} is {b.dtype}, {a.dtype} in the reference"
    if a.dtype == object or np.array_equal(a, b):
        return ""
    wide = np.abs(a.astype(np.float64) - b.astype(np.float64))
    return f"{what} differs in {int((a != b).sum())} of {a.size} values, by up to {float(np.nanmax(wide)):.3g}"


def _attribute(node: ir.Node, name: str) -> Any:
    attribute = node.attributes.get(name)
    if attribute is None:
        return None
    if attribute.type.name in ("INT", "INTS", "FLOAT", "FLOATS", "STRING", "STRINGS"):
        return list(attribute.value) if isinstance(attribute.value, (list, tuple)) else attribute.value
    return attribute.type.name  # bodies and tensors: only that there is one


def _short(value: Any) -> str:
    return "not set" if value is None else repr(value)[:80]


def _form(node: ir.Node, meant: Mapping[str | None, str | None]) -> Any:
    """Operator and what is read; a tensor without a counterpart makes a form that no other node has."""
    read: list[Any] = []
    for value in read_by(node):
        tensor = constant_of(value)
        if tensor is not None:
            read.append((tensor.dtype, tuple(tensor.shape.numpy())))
        else:
            read.append(meant.get(value.name) or id(value))
    return node.domain, node.op_type, len(node.outputs), tuple(read)


def _twin(node: ir.Node, forms: Iterable[ir.Node], taken: Collection[str]) -> ir.Node | None:
    free = [other for other in forms if not any(value.name in taken for value in other.outputs)]
    if len(free) > 1:
        same = [other for other in free if node.name and other.name == node.name]
        free = same or [other for other in free if _same_constants(node, other)] or free
    return free[0] if free else None


def _same_constants(one: ir.Node, other: ir.Node) -> bool:
    for ours, theirs in zip(one.inputs, other.inputs, strict=False):
        first, second = constant_of(ours), constant_of(theirs)
        if first is None or second is None or first.nbytes > _LARGEST:
            continue
        if not np.array_equal(first.numpy(), second.numpy()):
            return False
    return True


def _may_read(node: ir.Node, other: ir.Node, meant: Mapping[str | None, str | None]) -> bool:
    """Whether every tensor of a node that has a counterpart is read by the other one as that."""
    theirs = {value.name for value in read_by(other)}
    return all(meant[value.name] in theirs for value in read_by(node) if value.name in meant)
