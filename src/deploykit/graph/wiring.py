"""How the nodes of a graph hang together: every input made before it is used, each value made once, no cycle."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from deploykit.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    import onnx

_STANDARD = ("", "ai.onnx")
# Functions that call functions multiply: a few lines can ask for more nodes than any memory holds.
_MOST_NODES = 5_000_000
# Operators and dimensions stand in messages as they are: these would write elsewhere than in their line.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
# The libraries hold an opset in an int.
_LARGEST_OPSET = 2**31 - 1


def check_wiring(model: onnx.ModelProto, path: Path) -> bool:
    """Checks graph, subgraphs and functions; True when all nodes stand in order already.

    Raises ModelError: DK117 (missing input or output, value made twice, cycle), DK118 (domain without opset import),
    DK112 (an operator or an opset that cannot be one).
    """
    domains = _imports(model.opset_import, path, "the model")
    checker = _Checker(path, {(f.domain, f.name) for f in model.functions})
    checker.graph(model.graph, domains, frozenset(), f"graph {model.graph.name!r}")
    checker.expansion(model)
    for function in model.functions:
        what = f"function {function.name!r}"
        own = _imports(function.opset_import, path, what) if function.opset_import else domains
        checker.body(function.node, own, set(function.input), function.output, what)
    return checker.ordered


def _imports(entries: Iterable[onnx.OperatorSetIdProto], path: Path, what: str) -> set[str]:
    found: dict[str, int] = {}
    for entry in entries:
        domain = "" if entry.domain in _STANDARD else entry.domain
        if not (0 if domain else 1) <= entry.version <= _LARGEST_OPSET:
            raise ModelError(
                f"{path.name}: {what} imports opset {entry.version} of domain {domain or 'ai.onnx'!r}",
                code="DK112",
                file=path,
                hint="the file was made by a faulty tool: export it again",
            )
        if found.setdefault(domain, entry.version) != entry.version:
            raise ModelError(
                f"{path.name}: {what} imports two versions of domain {domain or 'ai.onnx'!r}", code="DK118", file=path
            )
    return set(found)


def _is_odd(name: str | bytes) -> bool:
    """Whether a name is no single line of text; protobuf gives bytes where the file's are not UTF-8."""
    return isinstance(name, bytes) or _CONTROL.search(name) is not None


class _Checker:
    """One pass over a model; `ordered` turns False at the first node that stands before its producer."""

    def __init__(self, path: Path, functions: set[tuple[str, str]]) -> None:
        """Starts with the functions that nodes may call."""
        self.path = path
        self.functions = functions
        self.ordered = True

    def fail(self, message: str, node: onnx.NodeProto | None = None, **facts: str) -> ModelError:
        return ModelError(
            f"{self.path.name}: {message}",
            code=facts.pop("code", "DK117"),
            file=self.path,
            node=node.name or None if node is not None else None,
            op=node.op_type if node is not None else None,
            tensor=facts.get("tensor"),
            hint=facts.get("hint", "the file was made by a faulty tool: export it again"),
        )

    def graph(self, graph: onnx.GraphProto, domains: set[str], outer: frozenset[str], what: str) -> None:
        for value in (*graph.input, *graph.output):
            for dim in value.type.tensor_type.shape.dim:
                if _is_odd(dim.dim_param):
                    raise self.fail(
                        f"{value.name!r} has a dimension that cannot be one: {dim.dim_param!r}",
                        tensor=value.name,
                        code="DK112",
                    )
        given = set()
        for kind, names in (
            ("input", [value.name for value in graph.input]),
            ("initializer", [t.name for t in graph.initializer] + [s.values.name for s in graph.sparse_initializer]),
        ):
            seen: set[str] = set()
            for name in names:
                if name in seen:
                    raise self.fail(f"{what} has two {kind}s called {name!r}", tensor=name)
                seen.add(name)
            given |= seen
        self.body(graph.node, domains, given, [value.name for value in graph.output], what, outer)

    def body(
        self,
        nodes: Sequence[onnx.NodeProto],
        domains: set[str],
        given: set[str],
        outputs: Iterable[str],
        what: str,
        outer: frozenset[str] = frozenset(),
    ) -> None:
        producers: dict[str, onnx.NodeProto] = {}
        for node in nodes:
            self._check_domain(node, domains)
            for name in node.output:
                if name and (name in producers or name in given):
                    other = f"{_called(producers[name])} too" if name in producers else "an input or initializer too"
                    raise self.fail(f"{name!r}, made by {_called(node)}, is made by {other}", node, tensor=name)
                if name:
                    producers[name] = node
        everything = frozenset(given) | producers.keys() | outer
        for name in outputs:
            if name not in everything:
                raise self.fail(f"nothing makes {name!r}, an output of {what}", tensor=name)
        made = set(given) | outer
        in_order = True
        needs: list[set[str]] = []
        for node in nodes:
            used = {name for name in node.input if name} | self._captured(node, domains, everything, what)
            for name in used:
                if name not in everything:
                    raise self.fail(f"nothing makes {name!r}, an input of {_called(node)}", node, tensor=name)
            in_order &= used <= made
            made.update(node.output)
            needs.append(used & producers.keys())
        if not in_order:
            self.ordered = False
            self._check_acyclic(nodes, needs, producers)

    def _check_domain(self, node: onnx.NodeProto, domains: set[str]) -> None:
        if not node.op_type or _is_odd(node.op_type) or _is_odd(node.domain):
            name = f"{node.domain!s}.{node.op_type!s}" if node.domain else node.op_type
            raise self.fail(f"node {node.name!r} has an operator that cannot be one: {name!r}", code="DK112")
        domain = "" if node.domain in _STANDARD else node.domain
        if domain not in domains and (node.domain, node.op_type) not in self.functions:
            raise self.fail(
                f"{_called(node)} is of domain {domain or 'ai.onnx'!r}, and the model does not import an opset of it",
                node,
                code="DK118",
                hint="add the opset import, or export the model again",
            )

    def _captured(self, node: onnx.NodeProto, domains: set[str], outer: frozenset[str], what: str) -> set[str]:
        """Checks the subgraphs of a node; returns the outer names that they use."""
        used: set[str] = set()
        for attribute in node.attribute:
            graphs = [attribute.g] if attribute.HasField("g") else list(attribute.graphs)
            for graph in graphs:
                self.graph(graph, domains, outer, f"{attribute.name!r} of {_called(node)}")
                used |= _free_names(graph)
        return used

    def expansion(self, model: onnx.ModelProto) -> None:
        """Refuses functions that call themselves, and calls that multiply beyond `_MOST_NODES` nodes."""
        bodies = {(f.domain, f.name, f.overload): (f.name, f.node) for f in model.functions}
        sizes: dict[tuple[str, str, str], int] = {}
        open_calls: list[tuple[str, str, str]] = []

        def size(nodes: Iterable[onnx.NodeProto]) -> int:
            return sum(1 + call((node.domain, node.op_type, node.overload)) + inner(node) for node in nodes)

        def inner(node: onnx.NodeProto) -> int:
            graphs = [g for a in node.attribute for g in ([a.g] if a.HasField("g") else a.graphs)]
            return sum(size(graph.node) for graph in graphs)

        def call(key: tuple[str, str, str]) -> int:
            if key not in bodies or key in sizes:
                return sizes.get(key, 0)
            name, nodes = bodies[key]
            if key in open_calls or len(open_calls) > 100:
                trail = " -> ".join([*(open_call[1] for open_call in open_calls[-5:]), name])
                raise self.fail(f"function {name!r} calls itself: {trail}")
            open_calls.append(key)
            sizes[key] = size(nodes)
            open_calls.pop()
            return sizes[key]

        if bodies and (total := size(model.graph.node)) > _MOST_NODES:
            raise self.fail(f"its functions expand to {total} nodes, more than the {_MOST_NODES} that are accepted")

    def _check_acyclic(
        self, nodes: Sequence[onnx.NodeProto], needs: list[set[str]], producers: dict[str, onnx.NodeProto]
    ) -> None:
        """Kahn's algorithm; what is left over hangs on a cycle, which is then walked to name it."""
        index = {name: at for at, node in enumerate(nodes) for name in node.output if name}
        waits = [{index[name] for name in names} for names in needs]
        followers: dict[int, list[int]] = {}
        for at, sources in enumerate(waits):
            for source in sources:
                followers.setdefault(source, []).append(at)
        open_counts = [len(sources) for sources in waits]
        ready = [at for at, count in enumerate(open_counts) if count == 0]
        while ready:
            for follower in followers.get(ready.pop(), ()):
                open_counts[follower] -= 1
                if open_counts[follower] == 0:
                    ready.append(follower)
        stuck = {at for at, count in enumerate(open_counts) if count > 0}
        if not stuck:
            return
        trail = [min(stuck)]
        while True:
            before = min(waits[trail[-1]] & stuck)
            if before in trail:
                break
            trail.append(before)
        circle = trail[trail.index(before) :][::-1]
        first = circle.index(min(circle))
        cycle = [nodes[at] for at in circle[first:] + circle[:first]]
        names = " -> ".join(_called(node) for node in [*cycle[:6], cycle[0]])
        raise self.fail(f"the graph has a cycle: {names}", cycle[0])


def _free_names(graph: onnx.GraphProto) -> set[str]:
    """Names that a subgraph takes from outside."""
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    own |= {sparse.values.name for sparse in graph.sparse_initializer}
    own |= {name for node in graph.node for name in node.output}
    used = {name for node in graph.node for name in node.input if name} | {value.name for value in graph.output}
    for node in graph.node:
        for attribute in node.attribute:
            for inner in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                used |= _free_names(inner)
    return used - own


def _called(node: onnx.NodeProto) -> str:
    if node.name:
        return f"{node.op_type} node {node.name!r}"
    return f"the {node.op_type} node that makes {', '.join(repr(name) for name in node.output)}"
