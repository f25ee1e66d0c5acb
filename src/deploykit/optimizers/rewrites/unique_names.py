"""A name of its own for every node, for engines that refuse two nodes with one."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from deploykit import graph
from deploykit.optimizers.rewriting import Change, Rewrite

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

# Where `named` keeps the nodes that it has renamed.
_RENAMED = "deploykit.renamed"


class UniqueNames(Rewrite):
    """The names are given when a model is loaded, since everything here goes by them; this keeps them, and says so."""

    name: ClassVar[str] = "unique-names"
    title: ClassVar[str] = "gives nodes that share a name one each"
    answers: ClassVar[tuple[str, ...]] = ("same node name",)

    def applies(self, node: ir.Node, model: ir.Model) -> bool:
        """Whether it had the name of another node."""
        return node.name in model.meta.get(_RENAMED, ())

    def apply(self, model: ir.Model, nodes: Sequence[ir.Node]) -> list[Change]:
        """One change for all."""
        found = [node.name or "" for node in nodes if self.applies(node, model)]
        return [Change((), (), f"other names for nodes that shared one: {', '.join(found)}")] if found else []


def named(model: ir.Model) -> ir.Model:
    """`graph.name_nodes`, which remembers the nodes whose name another one has; returns the same model."""
    before = [(node, node.name) for node in graph.all_nodes(model)]
    graph.name_nodes(model)
    model.meta[_RENAMED] = frozenset(node.name for node, name in before if name and node.name != name)
    return model
