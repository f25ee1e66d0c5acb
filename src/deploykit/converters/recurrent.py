"""GRU written out step by step: vendors without it take the operators that it consists of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deploykit.converters.steps import Steps

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    import onnx_ir as ir

# The first opset in which Squeeze and Unsqueeze, of which the steps are made, have their axes as inputs.
_STEPS_OPSET = 13

# A program of more steps takes minutes to compile.
MOST_STEPS = 512
_DEFAULTS = (["Sigmoid", "Tanh"], ["Sigmoid", "Tanh", "Sigmoid", "Tanh"])


def with_axes_as_inputs(model: ir.Model, operators: Container[str]) -> ir.Model:
    """The model in opset 13, where it is older and has one of these operators, which are to be written out."""
    import onnx_ir as ir
    from onnx import version_converter

    old = model.opset_imports.get("", 1) < _STEPS_OPSET
    if not old or not any(node.op_type in operators for node in model.graph):
        return model
    raised: ir.Model = ir.from_proto(version_converter.convert_version(ir.to_proto(model), _STEPS_OPSET))
    return raised


def write_out(model: ir.Model) -> int:
    """Replaces GRU of a known number of steps, of default activations, by its formulas; how many went."""
    found = [node for node in model.graph if node.op_type == "GRU" and node.domain in ("", "ai.onnx")]
    return sum(_unroll(model, node) for node in found)


def _unroll(model: ir.Model, node: ir.Node) -> bool:
    """ONNX, GRU-14 and 22: X [T, N, I], W [D, 3H, I], R [D, 3H, H], B [D, 6H], gates in the order z, r, h."""
    inputs = [*node.inputs, *([None] * (6 - len(node.inputs)))]
    x, w, r, b, lengths, first = inputs
    facts = node.attributes
    activations = facts["activations"].as_strings() if "activations" in facts else _DEFAULTS[0]
    direction = facts.get_string("direction", "forward")
    if x is None or w is None or r is None or x.shape is None or r.shape is None or x.dtype is None:
        return False
    steps, batch = x.shape[0], x.shape[1]
    hidden = r.shape[2]
    plain = lengths is None and "clip" not in facts and not facts.get_int("layout", 0)
    sized = isinstance(steps, int) and isinstance(hidden, int) and steps <= MOST_STEPS
    if not (plain and sized and list(activations) in _DEFAULTS and len(x.shape) == 3):
        return False
    assert isinstance(steps, int)
    assert isinstance(hidden, int)
    if first is None and not isinstance(batch, int):
        return False
    step = Steps(model, model.graph, node)
    after = facts.get_int("linear_before_reset", 0) != 0
    directions = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
    lasts, alls = [], []
    for place, backwards in enumerate(directions):
        weights = _Weights(step, place, w, r, b, hidden, x.dtype)
        state = _start(step, first, place, batch, hidden, x.dtype)
        outs: list[ir.Value] = []
        for time in reversed(range(steps)) if backwards else range(steps):
            state = weights.next(_at(step, x, time, 0), state, after=after)
            outs.append(step("Unsqueeze", state, step.constant([0])))
        ordered = outs[::-1] if backwards else outs
        whole = step("Concat", *ordered, axis=0) if steps > 1 else ordered[0]
        alls.append(step("Unsqueeze", whole, step.constant([1])))
        lasts.append(step("Unsqueeze", state, step.constant([0])))
    made = [
        step("Concat", *alls, axis=1) if len(alls) > 1 else alls[0],
        step("Concat", *lasts, axis=0) if len(lasts) > 1 else lasts[0],
    ]
    _replace(model, node, step, made)
    return True


class _Weights:
    """One direction's gates."""

    def __init__(
        self, step: Steps, place: int, w: ir.Value, r: ir.Value, b: ir.Value | None, hidden: int, dtype: ir.DataType
    ) -> None:
        self._step = step
        self._hidden = hidden
        self._one = step.constant(1.0, dtype)
        inner, outer = (_at(step, value, place, 0) for value in (w, r))
        self._w = [step("Transpose", self._gate(inner, gate), perm=[1, 0]) for gate in range(3)]
        self._r = [step("Transpose", self._gate(outer, gate), perm=[1, 0]) for gate in range(3)]
        biases = None if b is None else _at(step, b, place, 0)
        self._b = [None if biases is None else self._gate(biases, gate) for gate in range(6)]

    def _gate(self, value: ir.Value, gate: int) -> ir.Value:
        low, high = gate * self._hidden, (gate + 1) * self._hidden
        step = self._step
        return step("Slice", value, step.constant([low]), step.constant([high]), step.constant([0]))

    def _sum(self, *values: ir.Value | None) -> ir.Value:
        found = [value for value in values if value is not None]
        total = found[0]
        for value in found[1:]:
            total = self._step("Add", total, value)
        return total

    def next(self, x: ir.Value, state: ir.Value, *, after: bool) -> ir.Value:
        """The state behind one step; after: whether the reset gate comes behind the product (linear_before_reset)."""
        step, b = self._step, self._b
        z, r = (
            step(
                "Sigmoid",
                self._sum(step("MatMul", x, self._w[g]), step("MatMul", state, self._r[g]), b[g], b[g + 3]),
            )
            for g in (0, 1)
        )
        own = self._sum(step("MatMul", x, self._w[2]), b[2])
        if after:
            behind = step("Mul", r, self._sum(step("MatMul", state, self._r[2]), b[5]))
        else:
            behind = self._sum(step("MatMul", step("Mul", r, state), self._r[2]), b[5])
        h = step("Tanh", step("Add", own, behind))
        return step("Add", step("Mul", step("Sub", self._one, z), h), step("Mul", z, state))


def _at(step: Steps, value: ir.Value, place: int, axis: int) -> ir.Value:
    """One slice of an axis, which goes."""
    return step("Squeeze", _range(step, value, place, axis), step.constant([axis]))


def _range(step: Steps, value: ir.Value, place: int, axis: int) -> ir.Value:
    return step("Slice", value, step.constant([place]), step.constant([place + 1]), step.constant([axis]))


def _start(step: Steps, first: ir.Value | None, place: int, batch: object, hidden: int, dtype: ir.DataType) -> ir.Value:
    if first is not None:
        return _at(step, first, place, 0)
    assert isinstance(batch, int)
    return step("Expand", step.constant(0.0, dtype), step.constant([batch, hidden]))


def _replace(model: ir.Model, node: ir.Node, step: Steps, made: Sequence[ir.Value]) -> None:
    """Puts the steps where the node was; `Steps.replace` gives its first output only."""
    outputs = list(node.outputs)
    if len(outputs) > 1:
        result = outputs[1]
        if result.is_graph_output():
            for place, output in enumerate(model.graph.outputs):
                if output is result:
                    model.graph.outputs[place] = made[1]
            made[1].type, made[1].shape = result.type, result.shape
        name = result.name
        result.replace_all_uses_with(made[1])
        step.replace(made[0])
        made[1].name = name
        return
    step.replace(made[0])
