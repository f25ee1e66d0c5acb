"""Branches and loops: subgraphs lowered in place where what decides is known, as blocks of the program otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var

from deploykit.converters.coreml.lowering.body import lower_graph
from deploykit.converters.coreml.lowering.context import OpContext, Refused, lowers, positive_axis
from deploykit.opsupport.verdict import Verdict, supported, unsupported

if TYPE_CHECKING:
    import onnx_ir as ir

    from deploykit.converters.coreml.lowering.node import Node

# A loop is written out turn by turn; more turns than these make a program nobody wants to load.
_TURNS = 128


def _tensors_only(node: Node) -> Verdict:
    if any(value.type is not None and "Sequence" in type(value.type).__name__ for value in node.raw.outputs):
        return unsupported("Core ML has no sequences of tensors", remedy="return tensors")
    return supported()


@lowers("If", since=(1, 11, 13, 16, 19, 21, 23, 24, 25), when=_tensors_only)
def if_(op: OpContext) -> tuple[Var, ...]:
    """The branch itself where the condition is fixed; both, as a conditional of the program, where it is computed."""
    branches = [op.raw.attributes[name].as_graph() for name in ("then_branch", "else_branch")]
    fixed = op.constant(0)
    if fixed is not None:
        return _lowered(op, branches[0 if bool(fixed.reshape(-1)[0]) else 1], op.environment.inner())
    condition = op.input(0)

    def block(branch: ir.Graph) -> Any:
        def build() -> Any:
            made = [mb.identity(x=variable) for variable in _lowered(op, branch, op.environment.inner())]
            return made[0] if len(made) == 1 else tuple(made)

        return build

    made = mb.cond(
        pred=mb.squeeze(x=condition) if condition.rank else condition,
        _true_fn=block(branches[0]),
        _false_fn=block(branches[1]),
    )
    return tuple(made) if isinstance(made, (list, tuple)) else (made,)


def _lowered(op: OpContext, branch: ir.Graph, environment: Any) -> tuple[Var, ...]:
    lower_graph(branch, op, environment, op.opset)
    return tuple(environment.variable(value) for value in branch.outputs)


def _scan_form(node: Node) -> Verdict:
    axes = [*node.ints("scan_input_axes"), *node.ints("scan_output_axes")]
    if any(axes):
        return unsupported("it scans another axis than the first", remedy="transpose before and after the Scan")
    return supported()


@lowers("Scan", since=(9, 11, 16, 19, 21, 23, 24, 25), when=_scan_form)
def scan(op: OpContext) -> tuple[Var, ...]:
    """The body, once for each slice of the scanned inputs, written out turn by turn."""
    body = op.raw.attributes["body"].as_graph()
    count = op.integer("num_scan_inputs")
    state = [op.input(position) for position in range(op.input_count - count)]
    scanned = [op.input(position) for position in range(op.input_count - count, op.input_count)]
    turns = scanned[0].shape[0]
    if not isinstance(turns, (int, np.integer)) or turns > _TURNS:
        raise Refused(f"its {turns} turns vary or are more than {_TURNS}", "fix the length of the sequence")
    backward = [bool(way) for way in op.ints("scan_input_directions", [0] * count)]
    results: list[list[Var]] = [[] for _ in range(len(body.outputs) - len(state))]
    for turn in range(int(turns)):
        environment = op.environment.inner()
        for value, variable in zip(body.inputs, state, strict=False):
            environment.bind(value, variable)
        for value, whole, reverse in zip(body.inputs[len(state) :], scanned, backward, strict=True):
            environment.bind(value, element(whole, int(turns) - 1 - turn if reverse else turn))
        made = _lowered(op, body, environment)
        state = list(made[: len(state)])
        for place, variable in enumerate(made[len(state) :]):
            results[place].append(variable)
    ways = op.ints("scan_output_directions", [0] * len(results))
    stacked = [mb.stack(values=parts[::-1] if way else parts, axis=0) for parts, way in zip(results, ways, strict=True)]
    return (*state, *stacked)


def element(x: Var, place: int) -> Var:
    """x[place]."""
    rank = x.rank
    return mb.slice_by_index(
        x=x,
        begin=[place] + [0] * (rank - 1),
        end=[place + 1] + [0] * (rank - 1),
        begin_mask=[False] + [True] * (rank - 1),
        end_mask=[False] + [True] * (rank - 1),
        squeeze_mask=[True] + [False] * (rank - 1),
    )


@lowers("ReverseSequence", since=10)
def reverse_sequence(op: OpContext) -> Var:
    """The first elements of each sequence backwards, as many as its length says."""
    x = op.input(0)
    return mb.reverse_sequence(
        x=x,
        lengths=op.input(1),
        seq_axis=positive_axis(op.integer("time_axis", 0), x.rank),
        batch_axis=positive_axis(op.integer("batch_axis", 1), x.rank),
    )
