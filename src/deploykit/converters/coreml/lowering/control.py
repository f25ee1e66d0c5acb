"""Branches and loops: subgraphs lowered in place where what decides is known, as blocks of the program otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var

from deploykit.converters.coreml.lowering.body import lower_graph
from deploykit.converters.coreml.lowering.context import OpContext, Refused, lowers, positive_axis
from deploykit.graph.signature import constant_of
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


@lowers("Loop", since=(1, 11, 13, 16, 19, 21, 23, 24, 25), when=_tensors_only)
def loop(op: OpContext) -> tuple[Var, ...]:
    """Written out turn by turn where the number of turns is fixed, otherwise a loop of the program.

    A loop of the program collects nothing: outputs that grow with its turns are refused.
    """
    body = op.raw.attributes["body"].as_graph()
    state = [op.input(position) for position in range(2, op.input_count)]
    limit = op.constant(0)
    collects = len(body.outputs) - 1 - len(state)
    if limit is not None and _never_stops(op, body):
        turns = int(limit.reshape(-1)[0])
        if 0 < turns <= _TURNS:
            return _unrolled(op, body, state, turns)
    if collects:
        raise Refused("how often it runs is not fixed, and it collects a result from each turn", "fix its turns")
    return _running(op, body, state)


def _never_stops(op: OpContext, body: ir.Graph) -> bool:
    """Whether the condition is true at the start and stays so: none, a constant, or handed on."""
    if op.has(1):
        start = op.constant(1)
        if start is None or not bool(start.reshape(-1)[0]):
            return False
    going: ir.Value | None = body.outputs[0]
    while going is not None and going.producer() is not None:
        node = going.producer()
        known = constant_of(going)
        if known is not None:
            return bool(known.numpy().reshape(-1)[0])
        if node is None or node.op_type != "Identity":
            return False
        going = node.inputs[0]
    return going is body.inputs[1] or (going is not None and bool((_fixed(going) or [False])[0]))


def _fixed(value: ir.Value) -> list[bool] | None:
    known = constant_of(value)
    return None if known is None else [bool(item) for item in known.numpy().reshape(-1)]


def _unrolled(op: OpContext, body: ir.Graph, state: list[Var], turns: int) -> tuple[Var, ...]:
    results: list[list[Var]] = [[] for _ in range(len(body.outputs) - 1 - len(state))]
    going = mb.const(val=np.bool_(True))
    for turn in range(turns):
        environment = op.environment.inner()
        for value, variable in zip(body.inputs, [mb.const(val=np.int32(turn)), going, *state], strict=True):
            environment.bind(value, variable)
        lower_graph(body, op, environment, op.opset)
        made = [environment.variable(value) for value in body.outputs[1:]]
        state = made[: len(state)]
        for place, variable in enumerate(made[len(state) :]):
            results[place].append(variable)
    return (*state, *(mb.stack(values=parts, axis=0) for parts in results))


def _running(op: OpContext, body: ir.Graph, state: list[Var]) -> tuple[Var, ...]:
    most: Any = np.int32(np.iinfo(np.int32).max)
    if op.has(0):
        most = op.input(0)
        most = mb.squeeze(x=most) if most.rank else most
    going: Any = np.bool_(True)
    if op.has(1):
        going = op.input(1)
        going = mb.squeeze(x=going) if going.rank else going

    def test(turn: Var, going: Var, *_: Var) -> Var:
        return mb.logical_and(x=going, y=mb.less(x=turn, y=most))

    def turn_of(turn: Var, going: Var, *values: Var) -> tuple[Var, ...]:
        environment = op.environment.inner()
        for value, variable in zip(body.inputs, [turn, going, *values], strict=True):
            environment.bind(value, variable)
        lower_graph(body, op, environment, op.opset)
        made = [environment.variable(value) for value in body.outputs]
        again = mb.squeeze(x=made[0]) if made[0].rank else mb.identity(x=made[0])
        return (mb.add(x=turn, y=np.int32(1)), again, *(mb.identity(x=variable) for variable in made[1:]))

    made = mb.while_loop(_cond=test, _body=turn_of, loop_vars=(np.int32(0), going, *state))
    return tuple(made[2:])


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


@lowers("ReverseSequence", since=(10, 28))
def reverse_sequence(op: OpContext) -> Var:
    """The first elements of each sequence backwards, as many as its length says."""
    x = op.input(0)
    return mb.reverse_sequence(
        x=x,
        lengths=op.input(1),
        seq_axis=positive_axis(op.integer("time_axis", 0), x.rank),
        batch_axis=positive_axis(op.integer("batch_axis", 1), x.rank),
    )
