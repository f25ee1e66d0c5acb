"""The same graph in the same bytes: nodes in the order in which the outputs need them, and names numbered along it.

For exporters whose order and numbers differ from run to run (tf2onnx 1.17 walks through sets).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx_ir as ir

_NUMBER = re.compile(r"__\d+")


def make_canonical(model: ir.Model) -> None:
    """Reorders and renames everything but inputs and outputs, by structure alone; what no output needs goes."""
    _reorder(model.graph)
    taken = {str(value.name) for scope in model.graphs() for value in (*scope.inputs, *scope.outputs)}
    _rename(model.graph, taken, {})


def _reorder(scope: ir.Graph) -> None:
    for node in list(scope):
        for inner in _subgraphs(node):
            _reorder(inner)
    order = _by_need(scope)
    scope.remove(list(scope))
    scope.extend(order)


def _subgraphs(node: ir.Node) -> list[ir.Graph]:
    found: list[ir.Graph] = []
    for name in sorted(node.attributes):
        attribute = node.attributes[name]
        if attribute.type.name == "GRAPH":
            found.append(attribute.as_graph())
        elif attribute.type.name == "GRAPHS":
            found += attribute.as_graphs()
    return found


def _needed(node: ir.Node) -> Iterator[ir.Value]:
    """What the node reads, in the bodies of its loops and branches too."""
    yield from (value for value in node.inputs if value is not None)
    for inner in _subgraphs(node):
        for below in inner:
            yield from _needed(below)
        yield from inner.outputs


def _by_need(scope: ir.Graph) -> list[ir.Node]:
    """Nodes in the order in which the outputs need them, each after what it reads."""
    order: list[ir.Node] = []
    seen: set[int] = set()
    for output in scope.outputs:
        first = output.producer()
        if first is None or first.graph is not scope or id(first) in seen:
            continue
        seen.add(id(first))
        stack = [(first, _needed(first))]
        while stack:
            node, needed = stack[-1]
            below = next((p for v in needed if (p := v.producer()) and p.graph is scope and id(p) not in seen), None)
            if below is None:
                order.append(node)
                stack.pop()
                continue
            seen.add(id(below))
            stack.append((below, _needed(below)))
    return order


def _rename(scope: ir.Graph, taken: set[str], counts: dict[str, int]) -> None:
    kept = {id(value) for value in (*scope.inputs, *scope.outputs)}
    weights: dict[int, ir.Value] = {}
    for node in scope:
        for value in _needed(node):
            if value.is_initializer() and value.graph is scope:
                weights.setdefault(id(value), value)
    for value in scope.outputs:
        if value.is_initializer():
            weights.setdefault(id(value), value)
    scope.initializers.clear()
    values = [value for value in weights.values() if id(value) not in kept]
    values += [value for node in scope for value in node.outputs if id(value) not in kept]
    for value in values:
        value.name = _free(str(value.name), taken, counts)
    for value in weights.values():
        scope.initializers[str(value.name)] = value
    nodes: set[str] = set()
    for node in scope:
        node.name = _free(node.name or node.op_type, nodes, {})
        for inner in _subgraphs(node):
            _rename(inner, taken, counts)


def _free(name: str, taken: set[str], counts: dict[str, int]) -> str:
    """The name without an exporter's running number, with one of ours where that is needed."""
    stem = _NUMBER.sub("", name) or "value"
    found = stem
    while found in taken:
        counts[stem] = counts.get(stem, 0) + 1
        found = f"{stem}_{counts[stem]}"
    taken.add(found)
    return found
