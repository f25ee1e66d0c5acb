"""LSTM and GRU in TensorFlow, for batches and sequences of any size (runs in the managed environment).

onnx2tf makes Keras layers of them, whose loop LiteRT's converter takes only where the batch is fixed. These loops keep
their results in one tensor, which it takes as it is. Formulas: ONNX, LSTM-14 and GRU-14.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_PLAIN = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh")}


def lstm(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> list[Any]:
    """Y [time, directions, batch, hidden], Y_h and Y_c [directions, batch, hidden]; gates in the order i, o, f, c."""
    import tensorflow as tf

    _check("LSTM", attributes, inputs)
    known: list[Any] = [*inputs, *[None] * (8 - len(inputs))]
    x, w, r, b, _, h0, c0, _ = known
    size = attributes["hidden_size"]

    def step(given: Any, state: Sequence[Any], place: int) -> tuple[Any, ...]:
        h, c = state
        gates = given + tf.matmul(h, tf.transpose(r[place]))
        if b is not None:
            gates += b[place][4 * size :]
        i, o, f, g = tf.split(gates, 4, axis=-1)
        c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
        return tf.sigmoid(o) * tf.tanh(c), c

    return _directions(attributes, x, w, b, (h0, c0), step)


def gru(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> list[Any]:
    """Y [time, directions, batch, hidden] and Y_h [directions, batch, hidden]; gates in the order z, r, h."""
    import tensorflow as tf

    _check("GRU", attributes, inputs)
    known: list[Any] = [*inputs, *[None] * (6 - len(inputs))]
    x, w, r, b, _, h0 = known
    size = attributes["hidden_size"]
    before = bool(attributes.get("linear_before_reset", 0))

    def step(given: Any, state: Sequence[Any], place: int) -> tuple[Any, ...]:
        (h,) = state
        weights = tf.transpose(r[place])
        bias = tf.zeros([3 * size]) if b is None else b[place][3 * size :]
        zr = given[:, : 2 * size] + tf.matmul(h, weights[:, : 2 * size]) + bias[: 2 * size]
        z, reset = tf.split(tf.sigmoid(zr), 2, axis=-1)
        if before:
            inner = reset * (tf.matmul(h, weights[:, 2 * size :]) + bias[2 * size :])
        else:
            inner = tf.matmul(reset * h, weights[:, 2 * size :]) + bias[2 * size :]
        new = tf.tanh(given[:, 2 * size :] + inner)
        return ((1.0 - z) * new + z * h,)

    return _directions(attributes, x, w, b, (h0,), step)


def _check(op: str, attributes: Mapping[str, Any], inputs: Sequence[Any]) -> None:
    """Raises NotImplementedError for forms that nothing here computes."""
    names = [name.decode() if isinstance(name, bytes) else str(name) for name in attributes.get("activations", ())]
    plain = _PLAIN[op]
    odd = [name for name in names if name.casefold() not in plain]
    if odd or any(name.casefold() != plain[place % len(plain)] for place, name in enumerate(names)):
        raise NotImplementedError(f"{op} with the activations {', '.join(names)}")
    if attributes.get("clip") or attributes.get("input_forget") or attributes.get("layout"):
        raise NotImplementedError(f"{op} with clip, input_forget or layout")
    if len(inputs) > 4 and inputs[4] is not None:
        raise NotImplementedError(f"{op} with sequence_lens")
    if len(inputs) > 7 and inputs[7] is not None:
        raise NotImplementedError(f"{op} with peepholes")


def _directions(
    attributes: Mapping[str, Any],
    x: Any,
    w: Any,
    b: Any,
    start: Sequence[Any],
    step: Callable[..., tuple[Any, ...]],
) -> list[Any]:
    import tensorflow as tf

    kind = attributes.get("direction", b"forward")
    kind = kind.decode() if isinstance(kind, bytes) else kind
    backwards = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[kind]
    size = attributes["hidden_size"]
    x = tf.convert_to_tensor(x)
    sequences, lasts = [], []
    for place, reverse in enumerate(backwards):
        # What does not depend on the state is one product for all steps.
        given = tf.matmul(x, tf.transpose(tf.convert_to_tensor(w[place])))
        if b is not None:
            given += b[place][: w[place].shape[0]]
        zeros = tf.zeros([tf.shape(x)[1], size])
        state = [zeros if first is None else tf.convert_to_tensor(first)[place] for first in start]
        sequence, last = _loop(given, state, size, functools.partial(step, place=place), reverse=reverse)
        sequences.append(sequence)
        lasts.append(last)
    return [
        tf.stack(sequences, axis=1),
        *(tf.stack([last[place] for last in lasts], axis=0) for place in range(len(start))),
    ]


def _loop(
    given: Any, state: list[Any], size: int, step: Callable[[Any, Sequence[Any]], tuple[Any, ...]], *, reverse: bool
) -> tuple[Any, list[Any]]:
    import tensorflow as tf

    steps = tf.shape(given)[0]
    places = tf.reshape(tf.range(steps), [-1, 1, 1])
    made = tf.zeros([steps, tf.shape(given)[1], size])

    def body(turn: Any, made: Any, *held: Any) -> tuple[Any, ...]:
        at = steps - 1 - turn if reverse else turn
        after = step(tf.gather(given, at), held)
        return (turn + 1, tf.where(tf.equal(places, at), after[0][tf.newaxis], made), *after)

    shapes = [tf.TensorShape([]), tf.TensorShape([None, None, size]), *[tf.TensorShape([None, size])] * len(state)]
    _, made, *last = tf.while_loop(
        lambda turn, *_: turn < steps, body, [tf.constant(0), made, *state], shape_invariants=shapes
    )
    return made, last
