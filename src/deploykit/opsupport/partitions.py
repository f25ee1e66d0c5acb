"""Into how many pieces a graph falls when its engine takes some nodes only and leaves the others to another one.

A piece must be convex: if a path left it and came back, each of the two engines would wait for the other. Pieces are
grown by joining what an edge joins, unless another path leads around the edge; this is the condition of
`torch.fx.passes.infra.partitioner.CapabilityBasedPartitioner` and of TVM's `MergeCompilerRegions`. Joining goes on
until no two pieces with an edge between them can be joined, so that every piece is maximal.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    import onnx_ir as ir


@dataclasses.dataclass(slots=True)
class _Piece:
    """Nodes that run together. first, last: positions in the graph's order. before, after: other pieces, by number."""

    nodes: list[str]
    first: int
    last: int
    before: set[int] = dataclasses.field(default_factory=set)
    after: set[int] = dataclasses.field(default_factory=set)


def convex_groups(before: Mapping[str, Collection[str]], taken: Collection[str]) -> list[list[str]]:
    """The maximal convex connected groups of the nodes in `taken`.

    before: for each node, in topological order, the nodes whose results it reads; names outside are inputs.
    Returns the groups by their first node, each in graph order. A graph of the groups and the other nodes has no cycle.
    """
    position = {name: at for at, name in enumerate(before)}
    pieces = {at: _Piece([name], at, at) for name, at in position.items()}
    for name, read in before.items():
        for producer in read:
            if producer in position:
                pieces[position[name]].before.add(position[producer])
                pieces[position[producer]].after.add(position[name])
    wanted = {position[name] for name in taken if name in position}
    changed = True
    while changed:  # joining two pieces can open the way for two others whose detour it swallows
        changed = False
        for number in sorted(wanted):
            if number not in pieces:
                continue
            piece = number
            for source in sorted(pieces[piece].before & wanted):
                if source in pieces and source != piece and not _detour(pieces, source, piece):
                    piece = _join(pieces, source, piece)
                    changed = True
    groups = sorted((pieces[number] for number in wanted if number in pieces), key=lambda piece: piece.first)
    return [sorted(piece.nodes, key=position.__getitem__) for piece in groups]


def _detour(pieces: Mapping[int, _Piece], source: int, at: int) -> bool:
    """Whether a path leads from one piece to the other around the edges between them."""
    limit = pieces[at].last
    pending = [other for other in pieces[source].after if other != at]
    seen = set(pending)
    while pending:
        current = pieces[pending.pop()]
        if current.first > limit:
            continue
        for following in current.after:
            if following == at:
                return True
            if following not in seen and following != source:
                seen.add(following)
                pending.append(following)
    return False


def _join(pieces: dict[int, _Piece], source: int, at: int) -> int:
    """Moves the smaller piece into the larger one; returns the number of what is left."""
    kept, gone = sorted((source, at), key=lambda number: (-len(pieces[number].nodes), number))
    into, other = pieces[kept], pieces.pop(gone)
    into.nodes += other.nodes
    into.first, into.last = min(into.first, other.first), max(into.last, other.last)
    for number in other.before - {kept}:
        pieces[number].after.discard(gone)
        pieces[number].after.add(kept)
    for number in other.after - {kept}:
        pieces[number].before.discard(gone)
        pieces[number].before.add(kept)
    into.before = (into.before | other.before) - {kept, gone}
    into.after = (into.after | other.after) - {kept, gone}
    return kept


@dataclasses.dataclass(frozen=True, slots=True)
class Wiring:
    """The graphs of a model, by node names.

    graphs: the main graph first, then bodies of If, Loop and Scan and of functions, each node with what it reads.
    holds: for each node with bodies, and each call of a function, all nodes in them at any depth.
    """

    graphs: tuple[dict[str, tuple[str, ...]], ...]
    holds: dict[str, frozenset[str]]

    def partitions(self, taken: Collection[str], constants: Collection[str] = ()) -> int:
        """Pieces that an engine runs which takes these nodes; a node with a body belongs to it with its whole body.

        constants: nodes that follow from constants alone. They are computed before the graph is cut, and nothing is
        copied for them.
        """
        chosen = {*taken, *constants}
        whole = {name for name in chosen if self.holds.get(name, frozenset()) <= chosen}
        swallowed = set().union(*(self.holds[name] for name in whole if name in self.holds))
        own = whole - swallowed - set(constants)
        return sum(len(convex_groups(each, own & each.keys())) for each in self.graphs)


def wiring_of(model: ir.Model) -> Wiring:
    """How the nodes of a model, which all have names, read each other's results."""
    functions = {key: function.graph for key, function in model.functions.items()}
    graphs: list[dict[str, tuple[str, ...]]] = []
    holds: dict[str, frozenset[str]] = {}
    for top in (model.graph, *functions.values()):
        for each in (top, *_bodies(top)):
            graphs.append({node.name or "": tuple(_sources(node)) for node in each})
            for node in each:
                inner = frozenset(_inner(node, functions, ()))
                if inner:
                    holds[node.name or ""] = inner
    return Wiring(tuple(graphs), holds)


def _sources(node: ir.Node) -> Iterator[str]:
    """Producers of what a node reads; what its bodies read from outside counts as read by the node."""
    for reader in (node, *(inner for body in _own_bodies(node) for inner in _recursive(body))):
        for value in reader.inputs:
            producer = value.producer() if value is not None else None
            if producer is not None and producer.name:
                yield producer.name


def _inner(
    node: ir.Node, functions: Mapping[ir.OperatorIdentifier, ir.Graph], calls: tuple[ir.OperatorIdentifier, ...]
) -> Iterator[str]:
    bodies = list(_own_bodies(node))
    key = node.op_identifier()
    if key in functions and key not in calls:
        bodies.append(functions[key])
        calls = (*calls, key)
    for body in bodies:
        for inner in _recursive(body):
            yield inner.name or ""
            if inner.op_identifier() in functions:
                yield from _inner(inner, functions, calls)


def _own_bodies(node: ir.Node) -> Iterator[ir.Graph]:
    for attribute in node.attributes.values():
        if attribute.type.name == "GRAPH":
            yield attribute.as_graph()
        elif attribute.type.name == "GRAPHS":
            yield from attribute.as_graphs()


def _bodies(graph: ir.Graph) -> Iterator[ir.Graph]:
    """Bodies of the nodes of a graph, at any depth."""
    for node in graph:
        for body in _own_bodies(node):
            yield body
            yield from _bodies(body)


def _recursive(graph: ir.Graph) -> Iterable[ir.Node]:
    import onnx_ir

    return onnx_ir.traversal.RecursiveGraphIterator(graph)
