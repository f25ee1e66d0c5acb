"""Branches whose condition is known, and loops whose number of turns is known and small."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from deploykit.optimizers.editing import rank_of
from deploykit.optimizers.rewrites.decomposition import Decomposition
from deploykit.optimizers.rewrites.emitting import known_array, size_of
from deploykit.optimizers.rewrites.normalizations import integer
from deploykit.optimizers.rewrites.splicing import splice_graph

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx_ir as ir

    from deploykit.optimizers.rewrites.decomposition import Builder
    from deploykit.optimizers.rewrites.emitting import Emitter

# Nodes that an unrolled loop may have: above it the file and the time to compile grow out of hand.
_LARGEST = 512


def constant_if(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """The branch that a constant condition takes."""
    condition = known_array(node.inputs[0])
    if condition is None or condition.size != 1:
        return None
    taken = node.attributes.get("then_branch" if bool(condition.ravel()[0]) else "else_branch")
    return None if taken is None or taken.is_ref() else splice_graph(op, taken.as_graph(), [])


def constant_loop(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """The body once for each turn; what it scans is stacked along a new first dimension."""
    attribute = node.attributes.get("body")
    count = known_array(node.inputs[0]) if node.inputs[0] is not None else None
    if attribute is None or attribute.is_ref() or count is None or count.size != 1:
        return None
    body, turns = attribute.as_graph(), int(count.ravel()[0])
    condition = node.inputs[1] if len(node.inputs) > 1 else None
    if not _fits(body, turns) or not _is_true(condition) or not _stays_true(body):
        return None
    carried: list[ir.Value | None] = list(node.inputs[2:])
    scanned: list[list[ir.Value]] = [[] for _ in range(len(body.outputs) - 1 - len(carried))]
    for turn in range(turns):
        given = [op.const(np.array(turn, np.int64)), op.const(np.array(True)), *carried]
        results = splice_graph(op, body, given)
        carried = list(results[1 : 1 + len(carried)])
        for found, value in zip(scanned, results[1 + len(carried) :], strict=True):
            found.append(op.unsqueeze(value, [0]))
    stacked = [op.op("Concat", *found, axis=0) for found in scanned]
    return [*(value for value in carried if value is not None), *stacked]


def _fits(body: ir.Graph, turns: int) -> bool:
    return 0 < turns * max(1, len(list(body.all_nodes()))) <= _LARGEST


def _is_true(condition: ir.Value | None) -> bool:
    """A condition that is left out is true."""
    if condition is None:
        return True
    known = known_array(condition)
    return known is not None and known.size == 1 and bool(known.ravel()[0])


def _stays_true(body: ir.Graph) -> bool:
    """Whether the body gives the condition on as it is, or as a constant true."""
    result = body.outputs[0]
    while (producer := result.producer()) is not None and producer.op_type == "Identity" and producer.inputs[0]:
        result = producer.inputs[0]
    return result is body.inputs[1] or (known_array(result) is not None and _is_true(result))


def constant_scan(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """The body once for each slice of the scanned inputs, whose length is known (spec, Scan-9)."""
    attribute = node.attributes.get("body")
    if attribute is None or attribute.is_ref() or any(value is None for value in node.inputs):
        return None
    body, inputs = attribute.as_graph(), [value for value in node.inputs if value is not None]
    many = integer(node, "num_scan_inputs", 0)
    states, scans = inputs[: len(inputs) - many], inputs[len(inputs) - many :]
    outs = len(body.outputs) - len(states)
    axes, backwards = (_ints(node, key, many) for key in ("scan_input_axes", "scan_input_directions"))
    out_axes, out_backwards = (_ints(node, key, outs) for key in ("scan_output_axes", "scan_output_directions"))
    lengths = {size_of(value, axis) for value, axis in zip(scans, axes, strict=True) if rank_of(value) is not None}
    if not scans or len(lengths) != 1 or any(rank_of(value) is None for value in scans):
        return None
    length = lengths.pop()
    if length is None or not _fits(body, length):
        return None
    scanned: list[list[ir.Value]] = [[] for _ in range(outs)]
    for turn in range(length):
        slices = [
            op.op("Gather", value, op.const(np.array(length - 1 - turn if back else turn, np.int64)), axis=axis)
            for value, axis, back in zip(scans, axes, backwards, strict=True)
        ]
        results = splice_graph(op, body, [*states, *slices])
        states = list(results[: len(states)])
        for found, value, axis in zip(scanned, results[len(states) :], out_axes, strict=True):
            found.append(op.unsqueeze(value, [axis]))
    stacked = [
        op.op("Concat", *(reversed(found) if back else found), axis=axis)
        for found, axis, back in zip(scanned, out_axes, out_backwards, strict=True)
    ]
    return [*states, *stacked]


def _ints(node: ir.Node, name: str, count: int) -> list[int]:
    return list(node.attributes.get_ints(name, [0] * count))


class UnrollControlFlow(Decomposition):
    """If with a constant condition; Loop and Scan with a known, small number of turns and no other way to end."""

    name: ClassVar[str] = "unroll-control-flow"
    title: ClassVar[str] = "takes the branch of a constant If, and unrolls short loops of known length"
    builders: ClassVar[Mapping[tuple[str, str], Builder]] = {
        ("", "If"): constant_if,
        ("", "Loop"): constant_loop,
        ("", "Scan"): constant_scan,
    }
