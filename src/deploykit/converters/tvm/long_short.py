"""LSTM written out step by step: TVM's importer has none of ONNX's recurrent operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deploykit.converters.steps import Steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

# A program of more steps takes minutes to compile.
MOST_STEPS = 512
_ACTIVATIONS = ["Sigmoid", "Tanh", "Tanh"]
_DIRECTIONS = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}


def write_out_lstm(model: ir.Model) -> int:
    """Replaces LSTM of a known number of steps, of default activations, by its formulas; how many went."""
    found = [node for node in model.graph if node.op_type == "LSTM" and node.domain in ("", "ai.onnx")]
    return sum(_unroll(model, node) for node in found)


def _unroll(model: ir.Model, node: ir.Node) -> bool:
    """ONNX, LSTM-14 and 22: X [T, N, I], W [D, 4H, I], R [D, 4H, H], B [D, 8H], gates in the order i, o, f, c."""
    given: list[ir.Value | None] = [*node.inputs, *([None] * (8 - len(node.inputs)))]
    x, w, r, b, lengths, hidden_0, cell_0, peepholes = given
    facts = node.attributes
    directions = _DIRECTIONS[facts.get_string("direction", "forward")]
    activations = list(facts["activations"].as_strings()) if "activations" in facts else _ACTIVATIONS * len(directions)
    if x is None or w is None or r is None or x.shape is None or r.shape is None or x.dtype is None:
        return False
    steps, hidden = x.shape[0], r.shape[2]
    plain = lengths is None and peepholes is None and "clip" not in facts
    plain = plain and not facts.get_int("layout", 0) and not facts.get_int("input_forget", 0)
    if not plain or activations != _ACTIVATIONS * len(directions):
        return False
    if not (isinstance(steps, int) and isinstance(hidden, int) and 0 < steps <= MOST_STEPS):
        return False
    step = Steps(model, model.graph, node)
    lasts: list[ir.Value] = []
    cells: list[ir.Value] = []
    alls: list[ir.Value] = []
    for place, backwards in enumerate(directions):
        gates = _Gates(step, place, w, r, b, hidden)
        state, cell = (_start(step, x, given, place, hidden) for given in (hidden_0, cell_0))
        outs: list[ir.Value] = []
        for time in reversed(range(steps)) if backwards else range(steps):
            state, cell = gates.next(_at(step, x, time), state, cell)
            outs.append(step("Unsqueeze", state, step.constant([0])))
        ordered = outs[::-1] if backwards else outs
        whole = step("Concat", *ordered, axis=0) if steps > 1 else ordered[0]
        alls.append(step("Unsqueeze", whole, step.constant([1])))
        lasts.append(step("Unsqueeze", state, step.constant([0])))
        cells.append(step("Unsqueeze", cell, step.constant([0])))
    made = [
        step("Concat", *values, axis=axis) if len(values) > 1 else values[0]
        for values, axis in ((alls, 1), (lasts, 0), (cells, 0))
    ]
    _put(model, node, step, made)
    return True


class _Gates:
    """One direction's weights, all four gates in one product."""

    def __init__(self, step: Steps, place: int, w: ir.Value, r: ir.Value, b: ir.Value | None, hidden: int) -> None:
        self._step, self._hidden = step, hidden
        self._w, self._r = (step("Transpose", _at(step, value, place), perm=[1, 0]) for value in (w, r))
        self._bias = None
        if b is not None:
            both = _at(step, b, place)
            first, second = (_slice(step, both, low, low + 4 * hidden, 0) for low in (0, 4 * hidden))
            self._bias = step("Add", first, second)

    def next(self, x: ir.Value, state: ir.Value, cell: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The state and the cell behind one step."""
        step, hidden = self._step, self._hidden
        total = step("Add", step("MatMul", x, self._w), step("MatMul", state, self._r))
        if self._bias is not None:
            total = step("Add", total, self._bias)
        i, o, f, c = (_slice(step, total, gate * hidden, (gate + 1) * hidden, 1) for gate in range(4))
        kept = step("Mul", step("Sigmoid", f), cell)
        cell = step("Add", kept, step("Mul", step("Sigmoid", i), step("Tanh", c)))
        return step("Mul", step("Sigmoid", o), step("Tanh", cell)), cell


def _slice(step: Steps, value: ir.Value, low: int, high: int, axis: int) -> ir.Value:
    return step("Slice", value, step.constant([low]), step.constant([high]), step.constant([axis]))


def _at(step: Steps, value: ir.Value, place: int) -> ir.Value:
    """One slice of the first axis, which goes."""
    return step("Squeeze", _slice(step, value, place, place + 1, 0), step.constant([0]))


def _start(step: Steps, x: ir.Value, given: ir.Value | None, place: int, hidden: int) -> ir.Value:
    """The initial state [N, H]; zeros of the batch's size where none is given."""
    if given is not None:
        return _at(step, given, place)
    assert x.shape is not None
    assert x.dtype is not None
    batch, zero = x.shape[1], step.constant(0.0, x.dtype)
    if isinstance(batch, int):
        return step("Expand", zero, step.constant([batch, hidden]))
    sizes = step("Concat", _slice(step, step("Shape", x), 1, 2, 0), step.constant([hidden]), axis=0)
    return step("Expand", zero, sizes)


def _put(model: ir.Model, node: ir.Node, step: Steps, made: Sequence[ir.Value]) -> None:
    """Puts the steps where the node was, under the names of all its outputs."""
    others = []
    for result, value in list(zip(node.outputs, made, strict=False))[1:]:
        others.append((value, result.name))
        value.type, value.shape = result.type, result.shape
        result.replace_all_uses_with(value, replace_graph_outputs=True)
        result.name = None
    step.replace(made[0])
    for value, name in others:
        value.name = name
