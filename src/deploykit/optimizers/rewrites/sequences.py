"""Sequences of tensors whose length is known, as the tensors that they hold: Split and Concat."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from deploykit.optimizers.editing import rank_of
from deploykit.optimizers.rewrites.decomposition import in_function
from deploykit.optimizers.rewrites.emitting import Emitter, Names, known_array, size_of
from deploykit.optimizers.rewrites.normalizations import integer
from deploykit.optimizers.rewriting import Change, Rewrite

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

_MAKERS = frozenset({"SplitToSequence", "SequenceConstruct", "SequenceEmpty", "SequenceInsert", "SequenceErase"})
_READERS = frozenset({"SequenceAt", "ConcatFromSequence", "SequenceLength"})
_LONGEST = 256  # tensors that a sequence may have


class UnpackSequences(Rewrite):
    """SplitToSequence, SequenceAt, ConcatFromSequence and the rest, where every position is known before the run."""

    name: ClassVar[str] = "unpack-sequences"
    title: ClassVar[str] = "writes sequences of known length as Split and Concat of their tensors"

    def applies(self, node: ir.Node, model: ir.Model) -> bool:
        """Whether the node makes or reads a sequence whose length is known, and so with all nodes that it meets."""
        return node.graph is not None and not in_function(node, model) and _component(node) is not None

    def apply(self, model: ir.Model, nodes: Sequence[ir.Node]) -> list[Change]:
        """Rewrites all nodes around a sequence at once: half of them would not fit the other half."""
        names = Names(model)
        changes = []
        for node in nodes:
            if node.graph is None or in_function(node, model):
                continue
            component = _component(node)
            if component is None:
                continue
            removed = tuple(old.name or old.op_type for old in component)
            added = _unpack(component, model, names)
            changes.append(Change(removed, added, f"the sequence of {', '.join(removed)} as its tensors"))
        return changes


def _component(node: ir.Node) -> list[ir.Node] | None:
    """The nodes that share sequences with this one, in the order of the graph; None unless all can be unpacked."""
    if not _is_sequence_node(node):
        return None
    found: dict[int, ir.Node] = {}
    pending = [node]
    while pending:
        current = pending.pop()
        if id(current) in found:
            continue
        if not _is_sequence_node(current) or current.graph is not node.graph:
            return None
        found[id(current)] = current
        if current.op_type in _MAKERS:
            if current.outputs[0].is_graph_output():
                return None
            pending += current.outputs[0].consumers()
        if current.op_type in _READERS or current.op_type in ("SequenceInsert", "SequenceErase"):
            source = current.inputs[0]
            producer = None if source is None else source.producer()
            if producer is None:
                return None
            pending.append(producer)
    ordered = [part for part in node.graph or [] if id(part) in found]
    return ordered if _lengths(ordered) else None


def _is_sequence_node(node: ir.Node) -> bool:
    return node.domain in ("", "ai.onnx") and node.op_type in (_MAKERS | _READERS)


def _lengths(nodes: Sequence[ir.Node]) -> bool:
    """Whether every sequence has a known length, and every position lies within."""
    lengths: dict[ir.Value | None, int] = {}
    for node in nodes:
        length = lengths.get(node.inputs[0]) if node.inputs else None
        if node.op_type in _READERS and length is None:
            return False
        if node.op_type == "SequenceAt" and _position(node, 1, length or 0, 0) is None:
            return False
        if node.op_type == "ConcatFromSequence" and not length:
            return False
        if node.op_type in _MAKERS:
            made = _made(node, length)
            if made is None or made > _LONGEST:
                return False
            lengths[node.outputs[0]] = made
    return True


def _made(node: ir.Node, length: int | None) -> int | None:
    if node.op_type == "SequenceConstruct":
        return len(node.inputs)
    if node.op_type == "SequenceEmpty":
        return 0
    if node.op_type == "SplitToSequence":
        sizes = _split_sizes(node)
        return None if sizes is None else len(sizes)
    if length is None:
        return None
    if node.op_type == "SequenceInsert":
        return None if _position(node, 2, length, length, inclusive=True) is None else length + 1
    return None if _position(node, 1, length, length - 1) is None else length - 1


def _position(node: ir.Node, at: int, length: int, default: int, *, inclusive: bool = False) -> int | None:
    """A constant position from 0 on; None when it is computed or lies outside."""
    given = node.inputs[at] if at < len(node.inputs) else None
    if given is None:
        place = default
    else:
        known = known_array(given)
        if known is None or known.size != 1:
            return None
        place = int(known.ravel()[0])
    place = place + length if place < 0 else place
    return place if 0 <= place < length + inclusive else None


def _split_sizes(node: ir.Node) -> list[int] | None:
    value, axis = node.inputs[0], integer(node, "axis", 0)
    if value is None or rank_of(value) is None:
        return None
    size = size_of(value, axis)
    given = node.inputs[1] if len(node.inputs) > 1 else None
    if given is None:
        return None if size is None else [1] * size
    known = known_array(given)
    if known is None:
        return None
    if known.ndim:
        return [int(part) for part in known]
    chunk = int(known)
    if size is None or chunk < 1:
        return None
    return [min(chunk, size - start) for start in range(0, size, chunk)]


def _unpack(nodes: Sequence[ir.Node], model: ir.Model, names: Names) -> tuple[str, ...]:
    tensors: dict[ir.Value | None, list[ir.Value]] = {}
    added: list[str] = []
    for node in nodes:
        inside = tensors.get(node.inputs[0], []) if node.inputs else []
        op = Emitter(node, model)
        if node.op_type in _READERS:
            added += op.commit([_read(op, node, inside)], names)
            continue
        tensors[node.outputs[0]] = _make(op, node, inside)
        added += op.insert(names)
    for node in reversed(nodes):
        if node.op_type in _MAKERS and node.graph is not None:
            node.graph.remove(node, safe=True)
    return tuple(added)


def _make(op: Emitter, node: ir.Node, inside: list[ir.Value]) -> list[ir.Value]:
    given = [value for value in node.inputs if value is not None]
    if node.op_type == "SequenceConstruct":
        return given
    if node.op_type == "SequenceInsert":
        place = _position(node, 2, len(inside), len(inside), inclusive=True) or 0
        return [*inside[:place], given[1], *inside[place:]]
    if node.op_type == "SequenceErase":
        place = _position(node, 1, len(inside), len(inside) - 1) or 0
        return inside[:place] + inside[place + 1 :]
    if node.op_type == "SequenceEmpty":
        return []
    axis, sizes = integer(node, "axis", 0), _split_sizes(node) or []
    parts = list(op.split(given[0], axis, sizes)) if len(sizes) > 1 else given[:1]
    # Only parts of size 1 that nobody asked for lose their dimension (spec, SplitToSequence-11).
    if len(given) > 1 or integer(node, "keepdims", 1):
        return parts
    return [op.squeeze(part, [axis]) for part in parts]


def _read(op: Emitter, node: ir.Node, inside: list[ir.Value]) -> ir.Value:
    if node.op_type == "SequenceLength":
        return op.const(np.array(len(inside), np.int64))
    if node.op_type == "SequenceAt":
        return inside[_position(node, 1, len(inside), 0) or 0]
    axis = integer(node, "axis", 0)
    parts = [op.unsqueeze(part, [axis]) for part in inside] if integer(node, "new_axis", 0) else inside
    return op.op("Concat", *parts, axis=axis)
