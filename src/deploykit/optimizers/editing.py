"""Reading and changing single nodes: what the passes share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from deploykit.equivalence import random_nodes, unknown_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

STANDARD = ("", "ai.onnx")
# Shapes inside are those of one iteration, and need not be those of the next.
_REPEATED = ("Loop", "Scan", "SequenceMap")
_WITH_BODIES = ("If", *_REPEATED)


def nodes_of(model: ir.Model, *operators: str) -> list[ir.Node]:
    """Standard nodes of the graph and its bodies (functions left out), of the given operators or of all."""
    return _chosen(_walk(model.graph, loops=True), operators)


def once_run(model: ir.Model, *operators: str) -> list[ir.Node]:
    """As `nodes_of` without the bodies of loops: where an inferred shape holds for the whole run."""
    return _chosen(_walk(model.graph, loops=False), operators)


def _chosen(nodes: Iterator[ir.Node], operators: Sequence[str]) -> list[ir.Node]:
    wanted = frozenset(operators)
    return [node for node in nodes if node.domain in STANDARD and (not wanted or node.op_type in wanted)]


def _walk(scope: ir.Graph, *, loops: bool) -> Iterator[ir.Node]:
    """As the library's iterator, which asks every attribute of every node, in a fifth of its time."""
    for node in scope:
        yield node
        if (node.op_type in _WITH_BODIES or node.domain not in STANDARD) and (loops or node.op_type not in _REPEATED):
            for body in bodies(node):
                yield from _walk(body, loops=loops)


def standard_opset(model: ir.Model) -> int:
    """Version of the standard operators that the model imports; 0 for none."""
    return model.opset_imports.get("", model.opset_imports.get("ai.onnx", 0))


def bypass(node: ir.Node, source: ir.Value | None = None) -> bool:
    """Puts `source` (the first input) in the place of the node's first output; False where an interface would change.

    The name of a graph output stays: only a value that is computed in the same graph, and is no output itself, can
    take it over.
    """
    source = node.inputs[0] if source is None else source
    output, owner = node.outputs[0], node.graph
    if source is None or owner is None:
        return False
    if output.is_graph_output():
        producer = source.producer()
        if producer is None or producer.graph is not owner or source.is_graph_output():
            return False
        name, shape, kind = output.name, output.shape, output.type
        output.replace_all_uses_with(source, replace_graph_outputs=True)
        owner.remove(node, safe=True)
        source.name, source.type = name, kind or source.type
        source.shape = source.shape if shape is None else shape
        return True
    output.replace_all_uses_with(source)
    owner.remove(node, safe=True)
    return True


def put(
    node: ir.Node, operator: str, inputs: Sequence[ir.Value | None], attributes: Mapping[str, ir.Attr] | None = None
) -> ir.Node:
    """A node in the place of another one with one output, whose name, dtype, shape and node name it takes."""
    owner, old = node.graph, node.outputs[0]
    if owner is None:
        raise ValueError(f"{node.name} is in no graph")
    made = ir.Node("", operator, inputs, dict(attributes or {}), name=node.name)
    made.metadata_props.update(node.metadata_props)
    owner.insert_before(node, made)
    new = made.outputs[0]
    new.shape, new.type = old.shape, old.type
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    owner.remove(node, safe=True)
    new.name = old.name
    return made


def release(scope: ir.Graph) -> None:
    """Takes a body apart that is no longer run: its nodes would count as readers of outer values."""
    scope.outputs.clear()
    for node in reversed(list(scope)):
        for body in bodies(node):
            release(body)
        scope.remove(node, safe=True)


def kept_nodes(model: ir.Model) -> set[int]:
    """Identities of nodes that no pass takes away: random and custom ones, and those with such in their bodies."""
    kept = {id(node) for node in (*random_nodes(model), *unknown_nodes(model))}
    return _holders(model.graph, kept) | kept if kept else kept


def _holders(scope: ir.Graph, kept: set[int]) -> set[int]:
    found = set()
    for node in scope:
        for body in bodies(node):
            inside = _holders(body, kept)
            if inside or any(id(inner) in kept for inner in body):
                found |= inside | {id(node)}
    return found


def bodies(node: ir.Node) -> list[ir.Graph]:
    """The graphs that a node runs."""
    return [
        attribute.as_graph()
        for attribute in node.attributes.values()
        if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref()
    ]


def makes(value: ir.Value | None, *operators: str) -> ir.Node | None:
    """The standard node of one of these operators that makes the value; None otherwise."""
    producer = value.producer() if value is not None else None
    if producer is None or producer.domain not in STANDARD or producer.op_type not in operators:
        return None
    return producer


def used_once(value: ir.Value) -> bool:
    """Whether one input of one node is all that reads the value."""
    return len(value.uses()) == 1 and not value.is_graph_output()


def same_graph(*nodes: ir.Node) -> bool:
    """Whether all are in one graph: a body may run never or many times."""
    return all(node.graph is nodes[0].graph for node in nodes)


def integer(node: ir.Node, name: str, default: int = 0) -> int:
    """An integer attribute."""
    found = node.attributes.get(name)
    return default if found is None or found.is_ref() else int(found.as_int())


def integers(node: ir.Node, name: str) -> list[int] | None:
    """A list attribute; None when the node does not have it."""
    found = node.attributes.get(name)
    return None if found is None or found.is_ref() else [int(value) for value in found.as_ints()]


def number(node: ir.Node, name: str, default: float) -> float:
    """A float attribute."""
    found = node.attributes.get(name)
    return default if found is None or found.is_ref() else float(found.as_float())


def input_at(node: ir.Node, at: int) -> ir.Value | None:
    """An input that may be left out."""
    return node.inputs[at] if at < len(node.inputs) else None


def static_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """The shape where every size is a number."""
    if value is None or value.shape is None:
        return None
    sizes = tuple(dim for dim in value.shape if isinstance(dim, int))
    return sizes if len(sizes) == len(value.shape) else None


def rank_of(value: ir.Value | None) -> int | None:
    """Number of dimensions, where known."""
    return None if value is None or value.shape is None else len(value.shape)
