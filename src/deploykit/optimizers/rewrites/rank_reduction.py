"""Rearrangements that go through more dimensions than a target takes, with dimensions that move together as one."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, ClassVar

from deploykit.optimizers.editing import rank_of, static_shape
from deploykit.optimizers.rewrites.decomposition import in_function
from deploykit.optimizers.rewrites.emitting import Emitter, Names, known_array, size_of
from deploykit.optimizers.rewrites.permuting import LARGEST_RANK, permute
from deploykit.optimizers.rewrites.shaping import Product, UnknownSizeError, dim, product, reshape_back
from deploykit.optimizers.rewriting import Change, Rewrite

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

_ELEMENTWISE = frozenset(
    {
        "Abs", "Cast", "Ceil", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity",
        "LeakyRelu", "Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Softplus",
        "Softsign", "Sqrt", "Tanh",
    }
)  # fmt: skip
_ENDS = frozenset({"Reshape", "Flatten", "Squeeze"})


@dataclasses.dataclass(frozen=True)
class _Chain:
    """A Reshape or Unsqueeze to many dimensions, transposes and elementwise nodes, and what brings them back to few."""

    nodes: tuple[ir.Node, ...]
    sizes: tuple[Product, ...]
    order: tuple[int, ...]


class ReduceRank(Rewrite):
    """Window partitions and pixel shuffles through rank 6 and more, within rank 5: equal values."""

    name: ClassVar[str] = "reduce-rank"
    title: ClassVar[str] = "moves dimensions that stay neighbours as one, so that no tensor has more than 5"

    def applies(self, node: ir.Node, model: ir.Model) -> bool:
        """Whether the node is part of a rearrangement through more than 5 dimensions that fewer can express."""
        chain = None if node.graph is None or in_function(node, model) else _chain_of(node)
        if chain is None:
            return False
        emitter = Emitter(chain.nodes[-1], model)
        found = _emit(emitter, chain)
        emitter.discard()
        return found is not None

    def apply(self, model: ir.Model, nodes: Sequence[ir.Node]) -> list[Change]:
        """Rewrites each rearrangement once, whichever of its nodes are given."""
        names = Names(model)
        changes = []
        for node in nodes:
            chain = None if node.graph is None or in_function(node, model) else _chain_of(node)
            if chain is None:
                continue
            emitter = Emitter(chain.nodes[-1], model)
            end = _emit(emitter, chain)
            if end is None:
                emitter.discard()
                continue
            removed = tuple(old.name or old.op_type for old in chain.nodes)
            rank = len(chain.sizes)
            added = emitter.commit([end], names)
            for old in reversed(chain.nodes[:-1]):
                if old.graph is not None:
                    old.graph.remove(old, safe=True)
            text = f"the rearrangement through rank {rank} ({', '.join(removed)}) within rank {LARGEST_RANK}"
            changes.append(Change(removed, added, text))
        return changes


def _chain_of(node: ir.Node) -> _Chain | None:
    """The rearrangement that the node is part of."""
    start = node
    while not _is_start(start):
        source = start.inputs[0] if start.inputs else None
        before = None if source is None else source.producer()
        if before is None or not (_is_inner(start) or start.op_type in _ENDS) or (rank_of(source) or 0) <= LARGEST_RANK:
            return None
        start = before
    nodes, order = [start], list(range(len(start.outputs[0].shape or ())))
    while True:
        output = nodes[-1].outputs[0]
        users = output.consumers()
        if len(users) != 1 or output.is_graph_output() or users[0].graph is not start.graph:
            return None
        user = users[0]
        if not user.inputs or user.inputs[0] is not output or list(user.inputs).count(output) != 1:
            return None
        nodes.append(user)
        if user.op_type in _ENDS and user.domain in ("", "ai.onnx") and 0 < _out_rank(user) <= LARGEST_RANK:
            break
        if not _is_inner(user):
            return None
        if user.op_type == "Transpose":
            turned = user.attributes.get_ints("perm", list(reversed(range(len(order)))))
            order = [order[axis] for axis in turned]
    if not any(old is node for old in nodes):
        return None
    sizes = _sizes(start)
    return None if sizes is None else _Chain(tuple(nodes), tuple(sizes), tuple(order))


def _out_rank(node: ir.Node) -> int:
    return rank_of(node.outputs[0]) or 0


def _is_start(node: ir.Node) -> bool:
    return (
        node.domain in ("", "ai.onnx")
        and node.op_type in ("Reshape", "Unsqueeze")
        and _out_rank(node) > LARGEST_RANK
        and 0 < (rank_of(node.inputs[0]) or 0) <= LARGEST_RANK
    )


def _is_inner(node: ir.Node) -> bool:
    return node.domain in ("", "ai.onnx") and (node.op_type == "Transpose" or node.op_type in _ELEMENTWISE)


def _sizes(start: ir.Node) -> list[Product] | None:
    """The sizes of the many dimensions; those that only the vanishing tensor has are of no value."""
    source, output = start.inputs[0], start.outputs[0]
    if source is None or output.shape is None or source.shape is None:
        return None
    sizes: list[Product] = []
    wanted = known_array(start.inputs[1]) if start.op_type == "Reshape" and len(start.inputs) > 1 else None
    for at in range(len(output.shape)):
        size = size_of(output, at)
        if size is not None:
            sizes.append(Product((), size))
        elif wanted is not None and int(wanted[at]) == 0 and at < len(source.shape):
            sizes.append(dim(source, at))
        elif wanted is not None and int(wanted[at]) == -1:
            sizes.append(_rest(source, [int(size) for size in wanted]))
        else:
            sizes.append(Product(((None, at),)))
    return sizes


def _rest(source: ir.Value, wanted: Sequence[int]) -> Product:
    """What -1 stands for: the sizes of the source that are not copied, divided by those that are given."""
    copied = {at for at, size in enumerate(wanted) if size == 0}
    left = product([dim(source, at) for at in range(len(source.shape or ())) if at not in copied])
    return dataclasses.replace(left, over=math.prod(size for size in wanted if size > 0))


def _emit(op: Emitter, chain: _Chain) -> ir.Value | None:
    """The end of the chain: elementwise nodes first, they do not mind where an element stands."""
    value, end = chain.nodes[0].inputs[0], chain.nodes[-1]
    if value is None:
        return None
    for node in chain.nodes[1:-1]:
        if node.op_type != "Transpose":
            attributes = {key: attribute.value for key, attribute in node.attributes.items()}
            value = op.op(node.op_type, value, *node.inputs[1:], **attributes)
    try:
        value = permute(op, value, chain.sizes, chain.order)
    except UnknownSizeError:
        return None
    return _finish(op, value, end)


def _finish(op: Emitter, value: ir.Value, end: ir.Node) -> ir.Value | None:
    output = end.outputs[0]
    known = static_shape(output)
    if known is not None and 0 not in known:
        return op.reshape(value, known)
    wanted = known_array(end.inputs[1]) if end.op_type == "Reshape" and len(end.inputs) > 1 else None
    if wanted is not None and 0 not in wanted:
        return op.op("Reshape", value, end.inputs[1])
    sizes = [size_of(output, at) for at in range(len(output.shape or ()))]
    if sizes.count(None) <= 1 and 0 not in sizes:
        return reshape_back(op, value, output)
    # A computed shape has no 0 for "as it is": that is a habit of people, not of exporters.
    return op.op("Reshape", value, end.inputs[1]) if end.op_type == "Reshape" and wanted is None else None
