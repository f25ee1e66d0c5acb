"""LSTM, GRU and RNN.

An LSTM with the usual activations becomes Core ML's own; the others are written out step by step, since the order of
gates in Core ML's gru is not documented, and its form differs from ONNX's.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var

from deploykit.converters.coreml.lowering.context import OpContext, like, lowers, size_of
from deploykit.converters.coreml.lowering.control import element
from deploykit.converters.coreml.lowering.quantization import fixed_array
from deploykit.converters.coreml.lowering.shape import as_shape
from deploykit.opsupport.verdict import Verdict, supported, unknown, unsupported

if TYPE_CHECKING:
    from collections.abc import Callable

    from deploykit.converters.coreml.lowering.node import Node

Array = np.ndarray[Any, Any]
_STEPS = 32  # longer sequences become a loop: written out, nobody would want to load them
_USUAL = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_ACTIVATIONS: dict[str, Callable[[Var], Var]] = {
    "sigmoid": lambda x: mb.sigmoid(x=x),
    "tanh": lambda x: mb.tanh(x=x),
    "relu": lambda x: mb.relu(x=x),
}


def _form(node: Node) -> Verdict:
    ways = 2 if node.text("direction", "forward") == "bidirectional" else 1
    wanted = node.raw.attributes.get_strings("activations", [])
    names = [str(name).lower() for name in wanted] or [name.lower() for name in _USUAL[node.op]] * ways
    if any(name not in _ACTIVATIONS for name in names):
        return unsupported(f"its activations are {', '.join(names)}", remedy="use Sigmoid, Tanh and Relu")
    if node.has(4):
        return unsupported("it has sequence lengths", remedy="leave them out and mask the result")
    if node.op == "LSTM" and node.has(7):
        return unsupported("it has peepholes, whose formulas Core ML does not document", remedy="train without them")
    if "clip" in node.raw.attributes or node.flag("input_forget"):
        return unsupported("it clips, or couples its gates", remedy="export without clip and input_forget")
    if node.rank(0) not in (3, None) or node.dtype(0) not in ("float32", "float16", None):
        return unsupported(
            f"its input is {node.dtype(0)} of rank {node.rank(0)}, not floats [steps, batch, features]",
            remedy="fix the sizes that decide on it, or cast to float32",
        )
    if any(fixed_array(node, position) is None for position in (1, 2, 3) if node.has(position)):
        return unknown("its weights are computed while the model runs", remedy="deploykit simplify MODEL")
    return supported()


@dataclasses.dataclass(frozen=True, slots=True)
class Direction:
    """Weights of one direction, gates in ONNX's order: w [gates * H, I], r [gates * H, H], bias [2, gates * H]."""

    w: Array
    r: Array
    bias: Array
    h: Var
    c: Var | None
    backward: bool
    activations: list[str]

    @property
    def size(self) -> int:
        """H."""
        return int(self.r.shape[1])


def _weights(op: OpContext, position: int) -> Array:
    """Floats: Core ML's operators take no stored integers here."""
    found = fixed_array(op, position)
    return op.required_array(position, "weight") if found is None else found


def _directions(op: OpContext, x: Var) -> list[Direction]:
    way = op.text("direction", "forward")
    backward = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[way]
    w, r = _weights(op, 1), _weights(op, 2)
    size = r.shape[2]
    bias = _weights(op, 3) if op.has(3) else np.zeros((len(backward), 2 * w.shape[1]), w.dtype)
    names = [str(name).lower() for name in op.raw.attributes.get_strings("activations", [])]
    per = len(_USUAL[op.op])
    names = names or [name.lower() for name in _USUAL[op.op]] * len(backward)
    made = []
    for place, reverse in enumerate(backward):
        states = [_state(op, x, 5 + n, place, size) for n in range(2 if op.op == "LSTM" else 1)]
        made.append(
            Direction(
                w[place],
                r[place],
                bias[place].reshape(2, -1),
                states[0],
                states[1] if len(states) > 1 else None,
                reverse,
                names[place * per : (place + 1) * per],
            )
        )
    return made


def _state(op: OpContext, x: Var, position: int, direction: int, size: int) -> Var:
    """[batch, H] of one direction; zeros when it is not given, of the batch that x [steps, batch, ...] has."""
    if op.has(position):
        given = op.input(position)
        return element(mb.transpose(x=given, perm=[1, 0, 2]) if op.flag("layout") else given, direction)
    return mb.fill(shape=as_shape([size_of(x, 1), size]), value=like(x, 0))


@lowers("LSTM", since=(7, 14, 22), when=_form)
@lowers("GRU", since=(7, 14, 22), when=_form)
@lowers("RNN", since=(7, 14, 22), when=_form)
def recurrent(op: OpContext) -> tuple[Var, ...]:
    """Y [steps, directions, batch, H], the last h, and of an LSTM the last c [directions, batch, H]."""
    x = op.input(0)
    if op.flag("layout"):
        x = mb.transpose(x=x, perm=[1, 0, 2])
    directions = _directions(op, x)
    run = _native_lstm if op.op == "LSTM" and _is_usual(directions) else _written_out
    done = [run(op, x, direction) for direction in directions]
    outputs = [mb.stack(values=[every for every, *_ in done], axis=1)]
    outputs += [mb.stack(values=list(states), axis=0) for states in list(zip(*done, strict=True))[1:]]
    if op.flag("layout"):
        outputs = [mb.transpose(x=outputs[0], perm=[2, 0, 1, 3])] + [
            mb.transpose(x=state, perm=[1, 0, 2]) for state in outputs[1:]
        ]
    return tuple(outputs)


def _is_usual(directions: list[Direction]) -> bool:
    return all(direction.activations == ["sigmoid", "tanh", "tanh"] for direction in directions)


def _native_lstm(op: OpContext, x: Var, d: Direction) -> tuple[Var, ...]:
    """ONNX stores the gates as i, o, f, c; MIL wants i, f, o, z."""
    order = np.r_[0 : d.size, 2 * d.size : 3 * d.size, d.size : 2 * d.size, 3 * d.size : 4 * d.size]
    y, h, c = mb.lstm(
        x=x,
        initial_h=d.h,
        initial_c=d.c,
        weight_ih=d.w[order],
        weight_hh=d.r[order],
        bias=d.bias.sum(axis=0).astype(d.w.dtype)[order],
        direction="reverse" if d.backward else "forward",
        output_sequence=True,
        recurrent_activation="sigmoid",
        cell_activation="tanh",
        activation="tanh",
    )
    return y, h, c


def _written_out(op: OpContext, x: Var, d: Direction) -> tuple[Var, ...]:
    """Each step as operators; the products of the inputs once for all steps (spec: LSTM-22, GRU-22, RNN-22).

    Few steps of a fixed number stand one after another, others are a loop of the program.
    """
    late = op.op == "GRU" and op.flag("linear_before_reset")
    merged, kept = d.bias[0].copy(), d.bias[1]
    if late:  # the hidden gate's recurrent bias stands inside the product with r
        merged[: 2 * d.size] += kept[: 2 * d.size]
    else:
        merged += kept
    inputs = mb.linear(x=x, weight=d.w, bias=merged)
    states = [d.h] if d.c is None else [d.h, d.c]
    steps = x.shape[0]
    if isinstance(steps, (int, np.integer)) and steps <= _STEPS:
        every: list[Var] = []
        turns = range(int(steps))
        for turn in reversed(turns) if d.backward else turns:
            states = _step(op, element(inputs, turn), states, d, late)
            every.append(states[0])
        return mb.stack(values=every[::-1] if d.backward else every, axis=0), *states
    return _looped(op, inputs, states, d, late)


def _looped(op: OpContext, inputs: Var, states: list[Var], d: Direction, late: bool) -> tuple[Var, ...]:
    """A loop of the program over the steps; each writes its h into the sequence of all."""
    steps = size_of(inputs, 0)
    count = np.int32(steps) if isinstance(steps, int) else steps
    # Zeros of the sequence's form [steps, batch, H], whatever of it varies.
    first = mb.slice_by_index(
        x=inputs, begin=[0, 0, 0], end=[0, 0, d.size], begin_mask=[True] * 3, end_mask=[True, True, False]
    )
    zeros = mb.fill(shape=mb.shape(x=first), value=like(first, 0))

    def test(turn: Var, *_: Var) -> Var:
        return mb.less(x=turn, y=count)

    def body(turn: Var, every: Var, *now: Var) -> tuple[Var, ...]:
        place = mb.sub(x=mb.sub(x=count, y=np.int32(1)), y=turn) if d.backward else mb.identity(x=turn)
        parts = mb.gather(x=inputs, indices=place, axis=0)
        after = _step(op, parts, list(now), d, late)
        row = mb.expand_dims(x=after[0], axes=[0])
        every = mb.scatter(data=every, indices=mb.expand_dims(x=place, axes=[0]), updates=row, axis=0, mode="update")
        return mb.add(x=turn, y=np.int32(1)), every, *after

    made = mb.while_loop(_cond=test, _body=body, loop_vars=(np.int32(0), zeros, *states))
    return tuple(made[1:])


def _step(op: OpContext, inputs: Var, states: list[Var], d: Direction, late: bool) -> list[Var]:
    """h (and c) after one step, from the products of its inputs [batch, gates * H]."""
    acts = [_ACTIVATIONS[name] for name in d.activations]
    parts, h = _split(inputs, _GATES[op.op]), states[0]
    if op.op == "RNN":
        return [acts[0](mb.add(x=parts[0], y=mb.linear(x=h, weight=d.r)))]
    if op.op == "GRU":
        return [_gru_step(parts, h, d, acts, d.bias[1][2 * d.size :] if late else None)]
    i, o, f, z = (mb.add(x=a, y=b) for a, b in zip(parts, _split(mb.linear(x=h, weight=d.r), 4), strict=True))
    c = mb.add(x=mb.mul(x=acts[0](f), y=states[1]), y=mb.mul(x=acts[0](i), y=acts[1](z)))
    return [mb.mul(x=acts[0](o), y=acts[2](c)), c]


def _gru_step(parts: list[Var], h: Var, d: Direction, acts: list[Any], late_bias: Array | None) -> Var:
    """Gates z, r, h in ONNX's order; linear_before_reset multiplies r after the product (late_bias given)."""
    size = d.size
    update, reset = _split(mb.linear(x=h, weight=d.r[: 2 * size]), 2)
    z = acts[0](mb.add(x=parts[0], y=update))
    r = acts[0](mb.add(x=parts[1], y=reset))
    if late_bias is not None:
        inner = mb.mul(x=r, y=mb.linear(x=h, weight=d.r[2 * size :], bias=late_bias))
    else:
        inner = mb.linear(x=mb.mul(x=r, y=h), weight=d.r[2 * size :])
    new = acts[1](mb.add(x=parts[2], y=inner))
    kept = mb.mul(x=z, y=h)
    return mb.add(x=mb.mul(x=mb.sub(x=like(z, 1), y=z), y=new), y=kept)


def _split(x: Var, count: int) -> list[Var]:
    return [x] if count == 1 else list(mb.split(x=x, num_splits=count, axis=1))
