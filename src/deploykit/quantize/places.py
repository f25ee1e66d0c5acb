"""Where nodes stand: every graph of a model with the control-flow nodes around it, and where new nodes go in there."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import onnx_ir as ir

from deploykit.quantize.families import CONTROL_FLOW
from deploykit.quantize.prepare import drop_unused_initializers, names_in, unique_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# Their bodies run many times: what does not change belongs before them.
REPEATING = CONTROL_FLOW - {"If"}


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Place:
    """A node, and the nodes whose bodies it is inside of, outermost first."""

    node: ir.Node
    around: tuple[ir.Node, ...] = ()

    @property
    def owner(self) -> tuple[str, str] | None:
        """Operator and name of the control-flow node of the main graph; None in the main graph itself."""
        return (self.around[0].op_type, self.around[0].name or "") if self.around else None

    def before_loops(self) -> ir.Node:
        """The node before which something constant is computed once: the outermost loop around, else the node."""
        return next((outer for outer in self.around if outer.op_type in REPEATING and not outer.domain), self.node)


def places(main: ir.Graph, around: tuple[ir.Node, ...] = ()) -> Iterator[Place]:
    """Every node of a graph and of all bodies inside it, in graph order; the node before its bodies."""
    for node in list(main):
        yield Place(node, around)
        for attribute in list(node.attributes.values()):
            if attribute.type == ir.AttributeType.GRAPH:
                yield from places(attribute.as_graph(), (*around, node))
            elif attribute.type == ir.AttributeType.GRAPHS:
                for body in attribute.as_graphs():
                    yield from places(body, (*around, node))


class Rewriter:
    """Adds nodes and constants to a model under names that are free in all of its graphs."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._main = model.graph
        self._taken = names_in(model)
        self._constants: dict[tuple[object, ...], ir.Value] = {}

    def constant(
        self,
        name: str,
        tensor: ir.TensorProtocol,
        key: tuple[object, ...] | None = None,
        home: ir.Graph | ir.Function | None = None,
    ) -> ir.Value:
        """An initializer of `home`, or of the main graph, which every body sees; the same one for the same key."""
        if key is not None and key in self._constants:
            return self._constants[key]
        final = unique_name(self._main, name, self._taken)
        tensor.name = final
        value = ir.Value(
            name=final,
            type=ir.TensorType(tensor.dtype),
            shape=ir.Shape(tensor.shape.numpy()),
            const_value=tensor,
        )
        graph = self._main if home is None else home
        assert isinstance(graph, ir.Graph)
        graph.register_initializer(value)
        if key is not None:
            self._constants[key] = value
        return value

    def known(self, key: tuple[object, ...]) -> ir.Value | None:
        """The constant of that key, when there is one."""
        return self._constants.get(key)

    def before(
        self,
        anchor: ir.Node,
        op: str,
        inputs: list[ir.Value | None],
        output: str,
        *,
        domain: str = "",
        attributes: Mapping[str, int | float | str | list[int] | list[float] | list[str] | ir.Attr] | None = None,
        like: ir.Value | None = None,
        dtype: ir.DataType | None = None,
        outputs: int = 1,
    ) -> ir.Value:
        """A new node before `anchor`, in its graph; returns its first output, of the type and shape of `like`."""
        name = unique_name(self._main, output, self._taken)
        node = ir.node(
            op,
            inputs,
            attributes=attributes or {},
            domain=domain,
            num_outputs=outputs,
            name=unique_name(self._main, f"{name}/{op}", self._taken),
        )
        made = node.outputs[0]
        made.name = name
        if like is not None:
            made.type, made.shape = like.type, like.shape
        if dtype is not None:
            made.type = ir.TensorType(dtype)
        graph = anchor.graph
        assert graph is not None
        graph.insert_before(anchor, [node])
        return made

    def free(self, wanted: str) -> str:
        """The name, or with the first free number behind it."""
        return unique_name(self._main, wanted, self._taken)

    def replace(self, old: ir.Node, made: ir.Value) -> None:
        """`made` takes the place of the first output of `old`, and `old` leaves its graph.

        The value keeps its name, type and shape; the node that makes it takes over the name of the node.
        """
        producer = made.producer()
        assert producer is not None
        self._take_over(old, [made])
        producer.name = old.name

    def replace_all(self, old: ir.Node, new: ir.Node) -> None:
        """`new`, which stands in the graph, takes the place of `old` with all outputs."""
        self._take_over(old, list(new.outputs))

    @staticmethod
    def _take_over(old: ir.Node, values: list[ir.Value]) -> None:
        names = [out.name for out in old.outputs]
        for out, made in zip(old.outputs, values, strict=True):
            made.type, made.shape = out.type, out.shape
            out.replace_all_uses_with(made, replace_graph_outputs=True)
        graph = old.graph
        assert graph is not None
        graph.remove(old, safe=True)
        for made, name in zip(values, names, strict=True):
            made.name = name

    def finish(self) -> None:
        """Drops the initializers that nothing reads any more, in every graph."""
        for graph in self._model.graphs():
            drop_unused_initializers(graph)


def meeting_point(readers: Sequence[Place]) -> ir.Node:
    """The node before which something is computed that all readers (in graph order) share.

    Inside a body when all of them are in that one, so that a branch that is not taken costs nothing.
    """
    anchors = [place.before_loops() for place in readers]
    if all(anchor.graph is anchors[0].graph for anchor in anchors):
        return anchors[0]
    first = readers[0]
    return first.around[0] if first.around else first.node


def constant_reader(value: ir.Value | None) -> bool:
    """Whether the value is a float32 initializer of some graph that no input overrides; its data is not read."""
    return (
        value is not None
        and value.is_initializer()
        and not value.is_graph_input()
        and value.const_value is not None
        and value.dtype in {None, ir.DataType.FLOAT}
        and value.const_value.dtype == ir.DataType.FLOAT
    )


def shape_of(value: ir.Value | None) -> tuple[int, ...]:
    """The shape of an initializer's data, which stays unread."""
    assert value is not None
    assert value.const_value is not None
    return tuple(int(size) for size in value.const_value.shape.numpy())
