"""Node names: every report names its node, so every node needs one that no other has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

if TYPE_CHECKING:
    from collections.abc import Iterator


def all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Nodes of the graph and its subgraphs, in order, and then those of the functions."""
    yield from ir.traversal.RecursiveGraphIterator(model.graph)
    for function in model.functions.values():
        yield from ir.traversal.RecursiveGraphIterator(function.graph)


def name_nodes(model: ir.Model) -> ir.Model:
    """Gives unnamed nodes a name (`Conv_3`: third unnamed or renamed Conv), and later namesakes another one.

    Deterministic: it depends on the order of the nodes only. Returns the same model.
    """
    taken: set[str] = {node.name for node in all_nodes(model) if node.name}
    seen: set[str] = set()
    counts: dict[str, int] = {}
    for node in all_nodes(model):
        if node.name and node.name not in seen:
            seen.add(node.name)
            continue
        stem = node.name or node.op_type
        while True:
            counts[stem] = counts.get(stem, 0) + 1
            name = f"{stem}_{counts[stem]}"
            if name not in taken:
                break
        node.name = name
        taken.add(name)
        seen.add(name)
    return model
