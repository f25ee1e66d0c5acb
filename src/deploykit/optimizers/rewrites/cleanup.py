"""Takes away what nobody reads any more after a rewrite."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from deploykit import graph

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import onnx_ir as ir

    from deploykit.optimizers.rewriting import Change


def remove_unused(values: Iterable[ir.Value | None]) -> tuple[str, ...]:
    """Removes the producers of these values when nobody reads them, and then theirs; returns the nodes' names."""
    pending = [value for value in values if value is not None]
    gone: list[str] = []
    while pending:
        value = pending.pop()
        node = value.producer()
        if node is None:
            _drop_initializer(value)
            continue
        if node.graph is None or any(output.uses() or output.is_graph_output() for output in node.outputs):
            continue
        pending += [given for given in node.inputs if given is not None]
        gone.append(node.name or node.op_type)
        node.graph.remove(node, safe=True)
    return tuple(gone)


def _drop_initializer(value: ir.Value) -> None:
    """An initializer without readers goes; one that is an input as well is part of the interface."""
    owner = value.graph
    if owner is None or not value.is_initializer() or value.uses() or value.is_graph_output():
        return
    if not value.is_graph_input() and value.name in owner.initializers:
        del owner.initializers[str(value.name)]


def settled(changes: Sequence[Change], model: ir.Model) -> list[Change]:
    """Changes of one step without the nodes that came with one of them and went with another."""
    left = {node.name for node in graph.all_nodes(model)}
    came = {name for change in changes for name in change.added}
    return [
        dataclasses.replace(
            change,
            removed=tuple(name for name in change.removed if name not in came),
            added=tuple(name for name in change.added if name in left),
        )
        for change in changes
    ]
