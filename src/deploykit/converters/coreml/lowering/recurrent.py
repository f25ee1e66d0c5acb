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

from deploykit.converters.coreml.lowering.context import OpContext, Refused, like, lowers
from deploykit.converters.coreml.lowering.control import element
from deploykit.opsupport.verdict import Verdict, supported, unsupported

if TYPE_CHECKING:
    from collections.abc import Callable

    from deploykit.converters.coreml.lowering.node import Node

Array = np.ndarray[Any, Any]
_STEPS = 256  # longer sequences would be written out into a program nobody wants to load
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
    if node.rank(0) not in (3, None) or node.dtype(0) not in ("float32", "float16"):
        return unsupported("its input is not [steps, batch, features] of floats", remedy="cast to float32")
    if node.constant(1) is None or node.constant(2) is None or (node.has(3) and node.constant(3) is None):
        return unsupported("its weights are computed while the model runs", remedy="deploykit simplify MODEL")
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


def _directions(op: OpContext, x: Var) -> list[Direction]:
    way = op.text("direction", "forward")
    backward = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[way]
    w, r = op.required_array(1, "weight"), op.required_array(2, "weight")
    size = r.shape[2]
    bias = op.required_array(3, "bias") if op.has(3) else np.zeros((len(backward), 2 * w.shape[1]), w.dtype)
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
    batch = x.shape[1]
    kind = like(x, 0)
    if isinstance(batch, (int, np.integer)):
        return mb.const(val=np.zeros((int(batch), size), kind.dtype))
    first = mb.reduce_sum(x=mb.mul(x=element(x, 0), y=kind), axes=[1], keep_dims=True)
    return mb.mul(x=first, y=np.zeros((1, size), kind.dtype))


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
    if run is _written_out:
        steps = x.shape[0]
        if not isinstance(steps, (int, np.integer)) or steps > _STEPS:
            raise Refused(f"its {steps} steps vary or are more than {_STEPS}", "fix the length of the sequence")
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
    """Each step as operators; the products of the inputs once for all steps (spec: LSTM-22, GRU-22, RNN-22)."""
    gates, size = _GATES[op.op], d.size
    kept = d.bias[1].copy()
    merged = d.bias[0].copy()
    late = op.op == "GRU" and op.flag("linear_before_reset")
    if late:  # the hidden gate's recurrent bias stands inside the product with r
        merged[: 2 * size] += kept[: 2 * size]
    else:
        merged += kept
    inputs = mb.linear(x=x, weight=d.w, bias=merged)
    acts = [_ACTIVATIONS[name] for name in d.activations]
    h, c = d.h, d.c
    steps: list[Var] = []
    turns = range(int(x.shape[0]))
    for turn in reversed(turns) if d.backward else turns:
        parts = _split(element(inputs, turn), gates)
        if op.op == "RNN":
            h = acts[0](mb.add(x=parts[0], y=mb.linear(x=h, weight=d.r)))
        elif op.op == "GRU":
            h = _gru_step(parts, h, d, acts, kept[2 * size :] if late else None)
        else:
            i, o, f, z = (mb.add(x=a, y=b) for a, b in zip(parts, _split(mb.linear(x=h, weight=d.r), 4), strict=True))
            c = mb.add(x=mb.mul(x=acts[0](f), y=c), y=mb.mul(x=acts[0](i), y=acts[1](z)))
            h = mb.mul(x=acts[0](o), y=acts[2](c))
        steps.append(h)
    every = mb.stack(values=steps[::-1] if d.backward else steps, axis=0)
    return (every, h, c) if op.op == "LSTM" else (every, h)


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
