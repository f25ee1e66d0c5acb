"""Recurrent layers whose documentation fixes the order of gates: lstm and rnn."""

from __future__ import annotations

from typing import Any

import numpy as np

from deploykit.converters.coreml.simulator.table import Array, Undocumented, evaluates, flag, text

_ACTIVATIONS: dict[str, Any] = {
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "relu": lambda x: np.maximum(x, 0),
    "linear": lambda x: x,
}


def _activation(name: Any) -> Any:
    if text(name) not in _ACTIVATIONS:
        raise Undocumented(f"activation {text(name)!r}, whose parameters are not documented")
    return _ACTIVATIONS[text(name)]


@evaluates("rnn")
def rnn(
    x: Array,
    initial_h: Array,
    weight_ih: Array,
    weight_hh: Array,
    bias: Array | None = None,
    direction: Any = "forward",
    output_sequence: Any = False,
    activation: Any = "tanh",
) -> tuple[Array, Array]:
    """h = activation(W x + R h + b) over x [steps, batch, features]."""
    act, h = _activation(activation), initial_h
    backward = text(direction) == "reverse"
    steps = []
    for values in x[::-1] if backward else x:
        h = act(values @ weight_ih.T + h @ weight_hh.T + (0 if bias is None else bias))
        steps.append(h)
    return _sequence(steps, h, backward, flag(output_sequence)), h


def _sequence(steps: list[Array], last: Array, backward: bool, every: bool) -> Any:
    if not every:
        return last[None]
    return np.stack(steps[::-1] if backward else steps)


def _run(x: Array, state: tuple[Array, Array], weights: tuple[Any, ...], acts: tuple[Any, ...], every: bool) -> Any:
    """One direction, x in the order in which it is read: steps, h, c. Gates stand in the order i, f, o, z."""
    weight_ih, weight_hh, bias, peephole = weights
    gate, cell, out, limit = acts
    h, c = state
    size = h.shape[-1]
    looks = np.zeros(3 * size, h.dtype) if peephole is None else peephole
    steps = []
    for values in x:
        made = values @ weight_ih.T + h @ weight_hh.T + (0 if bias is None else bias)
        i, f, o, z = (made[:, n * size : (n + 1) * size] for n in range(4))
        z = cell(z if limit is None else np.clip(z, -float(limit), float(limit)))
        c_next = gate(f + looks[size : 2 * size] * c) * c + gate(i + looks[:size] * c) * z
        o = gate(o + looks[2 * size :] * c_next)
        h, c = o * out(c_next), c_next
        if every:
            steps.append(h)
    return steps, h, c


@evaluates("lstm")
def lstm(
    x: Array,
    initial_h: Array,
    initial_c: Array,
    weight_ih: Array,
    weight_hh: Array,
    bias: Array | None = None,
    peephole: Array | None = None,
    weight_ih_back: Array | None = None,
    weight_hh_back: Array | None = None,
    bias_back: Array | None = None,
    peephole_back: Array | None = None,
    direction: Any = "forward",
    output_sequence: Any = False,
    recurrent_activation: Any = "sigmoid",
    cell_activation: Any = "tanh",
    activation: Any = "tanh",
    clip: Any = None,
) -> tuple[Array, Array, Array]:
    """The long short-term memory over x [steps, batch, features]; both directions side by side in the last axis."""
    if peephole is not None or peephole_back is not None:
        raise Undocumented("lstm with peepholes, whose formulas are not documented")
    acts = (_activation(recurrent_activation), _activation(cell_activation), _activation(activation), clip)
    size, way, every = weight_hh.shape[1], text(direction), flag(output_sequence)
    forward = (weight_ih, weight_hh, bias, None)
    if way != "bidirectional":
        backward = way == "reverse"
        steps, h, c = _run(x[::-1] if backward else x, (initial_h, initial_c), forward, acts, every)
        return _sequence(steps, h, backward, every), h, c
    back = (weight_ih_back, weight_hh_back, bias_back, None)
    left = _run(x, (initial_h[:, :size], initial_c[:, :size]), forward, acts, every)
    right = _run(x[::-1], (initial_h[:, size:], initial_c[:, size:]), back, acts, every)
    y = [_sequence(side[0], side[1], back_first, every) for side, back_first in ((left, False), (right, True))]
    return (
        np.concatenate(y, axis=-1),
        np.concatenate([left[1], right[1]], axis=-1),
        np.concatenate([left[2], right[2]], axis=-1),
    )
