"""Half precision: float32 tensors become float16 or bfloat16 in every graph, with Casts where something stays float32.

The rules (`half_rules`) say what each node takes and gives; here the graphs are rewritten to that.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from deploykit.quantize.families import CONTROL_FLOW
from deploykit.quantize.half_formats import FLOAT16, PIECE, HalfFormat
from deploykit.quantize.half_islands import Evidence, Islands
from deploykit.quantize.half_rules import Signature, complete_types, is_single, signature_of
from deploykit.quantize.prepare import drop_unused_initializers, is_constant, names_in, unique_name

if TYPE_CHECKING:
    from collections.abc import Mapping

Array = np.ndarray[Any, Any]
UNDERFLOW_NOTED = 0.001


@dataclasses.dataclass(slots=True)
class HalfResult:
    """What became half and what did not.

    converted: names of the nodes that compute in half. islands: (name, op, reason) of those that have float tensors
    and do not. underflow: share of a weight's values that became 0, by name. wide: inputs and outputs that stay
    float32 because of their largest magnitude, by name.
    """

    converted: list[str] = dataclasses.field(default_factory=list)
    islands: list[tuple[str, str, str]] = dataclasses.field(default_factory=list)
    underflow: dict[str, float] = dataclasses.field(default_factory=dict)
    wide: dict[str, float] = dataclasses.field(default_factory=dict)


def convert_to_half(
    model: ir.Model,
    form: HalfFormat = FLOAT16,
    *,
    keep_io: bool = False,
    exclude: tuple[str, ...] = (),
    peaks: Mapping[str, float] | None = None,
    evidence: Evidence | None = None,
    islands: Mapping[str, str] | None = None,
) -> HalfResult:
    """Converts a model with inferred types in place; weights are converted one by one when the model is written.

    keep_io: inputs and outputs keep name and dtype. exclude: node names or op types that stay float32.
    evidence: what was measured on data (peaks: only the largest magnitude by tensor name); nodes around values that
    the format cannot hold stay float32. islands: names of further nodes that do, with the reason.
    """
    known = evidence or Evidence(peaks or {})
    found = Islands(model, form, exclude, known, islands)
    return _Converter(model, form, found, known.peaks, keep_io=keep_io).run()


class _Converter:
    def __init__(
        self, model: ir.Model, form: HalfFormat, islands: Islands, peaks: Mapping[str, float], *, keep_io: bool
    ) -> None:
        complete_types(model)
        self._model = model
        self._form = form
        self._keep_io = keep_io
        self._reasons = islands.find()
        self._magnitudes = islands.constants
        self._taken = names_in(model)
        self._signatures: dict[ir.Node, Signature] = {}
        self._half: set[ir.Value] = set()
        self._single: set[ir.Value] = set()  # every value that was float32 to begin with
        self._casts: dict[tuple[ir.Value, bool], ir.Value] = {}
        self._constants: dict[tuple[ir.Value, bool], ir.Value] = {}
        self._uses: dict[ir.Value, set[bool]] = {}
        self._result = HalfResult()
        if not keep_io:  # what lies beyond the format would become infinite before any node could read it
            ends = [value for value in (*model.graph.inputs, *model.graph.outputs) if is_single(value)]
            measured = {value.name or "": peaks.get(value.name or "", 0.0) for value in ends}
            self._result.wide = {name: peak for name, peak in measured.items() if peak > form.limit}

    def _keeps(self, graph: ir.Graph, value: ir.Value) -> bool:
        """Whether an input or output of the graph stays float32."""
        return graph is self._model.graph and (self._keep_io or value.name in self._result.wide)

    def run(self) -> HalfResult:
        graphs = list(self._model.graphs())
        for graph in graphs:
            self._decide(graph)
        self._uses = self._constant_uses(graphs)
        for graph in graphs:
            for node in list(graph):
                self._rewire(node)
        for graph in graphs:
            self._fix_outputs(graph)
        for value in self._half:
            value.type = ir.TensorType(self._form.dtype)
        for graph in graphs:
            drop_unused_initializers(graph)
        return self._result

    def _decide(self, graph: ir.Graph) -> None:
        """Which values of the graph are half, by who makes them."""
        for value in graph.inputs:
            if is_single(value):
                self._single.add(value)
                if not self._keeps(graph, value):
                    self._half.add(value)
        self._single.update(value for value in graph.initializers.values() if is_single(value))
        for node in graph:
            found = signature_of(node, self._model.opset_imports, self._form)
            reason = self._reasons.get(node)
            if (
                node.op_type == "Cast"
                and reason is None
                and any(u.node in self._reasons for u in node.outputs[0].uses())
            ):
                reason = "" if node.inputs[0] is not None and not is_single(node.inputs[0]) else None
            self._single.update(value for value in node.outputs if is_single(value))
            touched, has_floats = found.any, any(is_single(v) for v in (*node.inputs, *node.outputs))
            if reason is not None or "sparse_value" in node.attributes:
                if reason and (touched or has_floats):
                    self._result.islands.append((node.name or "", node.op_type, reason))
                found = Signature((False,) * len(node.inputs), (False,) * len(node.outputs))
            elif touched and node.op_type not in CONTROL_FLOW | {"Constant"}:
                self._result.converted.append(node.name or "")
            elif not touched and has_floats:
                self._result.islands.append(
                    (node.name or "", node.op_type, f"its definition has no {self._form.title}")
                )
            found = self._as_stored(node, found)
            self._signatures[node] = found
            self._half.update(v for v, half in zip(node.outputs, found.outputs, strict=True) if half)

    def _as_stored(self, node: ir.Node, found: Signature) -> Signature:
        """A node that gives no float and reads one (Shape, Cast to int64) reads it as it is: a Cast would round."""
        read = [value for value in node.inputs if is_single(value)]
        if any(map(is_single, node.outputs)) or len(read) != 1 or not any(found.inputs) or is_constant(read[0]):
            return found
        return Signature(tuple(value in self._half for value in node.inputs), found.outputs)

    def _constant_uses(self, graphs: list[ir.Graph]) -> dict[ir.Value, set[bool]]:
        """For each float32 initializer, in which precisions it is read (True: half)."""
        uses: dict[ir.Value, set[bool]] = {}
        for graph in graphs:
            for node in graph:
                for value, half in zip(node.inputs, self._signatures[node].inputs, strict=True):
                    if value is not None and value in self._single and value.is_initializer():
                        uses.setdefault(value, set()).add(half)
            for value in graph.outputs:
                if value in self._single and value.is_initializer():
                    uses.setdefault(value, set()).add(not (self._keep_io and graph is self._model.graph))
        return uses

    def _rewire(self, node: ir.Node) -> None:
        found = self._signatures[node]
        for index, (value, half) in enumerate(zip(list(node.inputs), found.inputs, strict=True)):
            if value is None or value not in self._single:
                continue
            if value.is_initializer():
                node.replace_input_with(index, self._constant(value, half))
            elif (value in self._half) != half:
                node.replace_input_with(index, self._cast(value, half))
        if any(found.outputs):
            self._retarget(node)

    def _retarget(self, node: ir.Node) -> None:
        """Attributes that say float32 where the output is half now."""
        if node.domain:
            return
        if node.op_type == "Cast":
            node.attributes["to"] = ir.AttrInt64("to", int(self._form.dtype))
        elif node.op_type == "ConstantOfShape":
            given = node.attributes.get("value")
            fill = np.zeros(1, np.float32) if given is None else given.as_tensor().numpy()
            node.attributes["value"] = ir.AttrTensor("value", ir.tensor(self._form.rounded(fill)))
        elif node.op_type == "Constant":
            name, given = next(iter(node.attributes.items()))
            array = given.as_tensor().numpy() if name == "value" else np.array(given.value, np.float32)
            node.attributes.clear()
            node.attributes["value"] = ir.AttrTensor("value", ir.tensor(self._form.rounded(array)))

    def _constant(self, value: ir.Value, half: bool) -> ir.Value:
        """The initializer in the wanted precision: the same one where all readers agree, a copy otherwise."""
        if not half:
            return value
        key = (value, half)
        if key not in self._constants:
            self._constants[key] = self._half_constant(value, in_place=self._uses[value] == {True})
        return self._constants[key]

    def _half_constant(self, value: ir.Value, *, in_place: bool) -> ir.Value:
        assert value.const_value is not None
        lost = self._magnitudes[value].lost if value in self._magnitudes else 0.0
        if lost > UNDERFLOW_NOTED:
            self._result.underflow[value.name or ""] = lost
        if in_place:
            value.const_value = rounded_tensor(value.const_value, self._form, value.name or "")
            value.type = ir.TensorType(self._form.dtype)
            return value
        owner = value.graph
        assert isinstance(owner, ir.Graph)
        name = unique_name(owner, f"{value.name}_half", self._taken)
        copy = ir.Value(
            name=name,
            type=ir.TensorType(self._form.dtype),
            shape=ir.Shape(value.const_value.shape.numpy()),
            const_value=rounded_tensor(value.const_value, self._form, name),
        )
        owner.register_initializer(copy)
        return copy

    def _cast(self, value: ir.Value, half: bool) -> ir.Value:
        """The value in the other precision, by a Cast in the graph that owns the value, right behind its producer."""
        if (value, half) not in self._casts:
            node = self._cast_node(value, half)
            producer = value.producer()
            if producer is not None and producer.graph is not None:
                producer.graph.insert_after(producer, [node])
            else:
                owner = value.graph
                assert isinstance(owner, ir.Graph)
                owner.insert_before(owner[0], [node])
            self._casts[value, half] = node.outputs[0]
        return self._casts[value, half]

    def _cast_node(self, value: ir.Value, half: bool) -> ir.Node:
        graph = self._model.graph
        name = unique_name(graph, f"{value.name}_{'half' if half else 'float'}", self._taken)
        dtype = self._form.dtype if half else ir.DataType.FLOAT
        node = ir.node(
            "Cast",
            [value],
            attributes={"to": int(dtype)},
            num_outputs=1,
            name=unique_name(graph, f"{name}/Cast", self._taken),
        )
        node.outputs[0].name = name
        node.outputs[0].type = ir.TensorType(dtype)
        node.outputs[0].shape = value.shape
        return node

    def _fix_outputs(self, graph: ir.Graph) -> None:
        """Outputs in the promised precision under their names: bodies always in half, the main graph as asked."""
        main = graph is self._model.graph
        for index, value in enumerate(list(graph.outputs)):
            want = not self._keeps(graph, value)
            if value not in self._single or (value in self._half) == want:
                continue
            if value.is_initializer():
                graph.outputs[index] = self._constant(value, want)
                continue
            node = self._cast_node(value, want)
            graph.append(node)
            if main or value.graph is graph:
                value.name, node.outputs[0].name = node.outputs[0].name, value.name
            graph.outputs[index] = node.outputs[0]


def rounded_tensor(tensor: ir.TensorProtocol, form: HalfFormat, name: str) -> ir.TensorProtocol:
    """The tensor in the format; a large one is converted each time its values are asked for, and not kept."""

    def convert() -> ir.TensorProtocol:
        found = ir.tensor(form.rounded(tensor.numpy()), name=name)
        if isinstance(tensor, ir.ExternalTensor):
            tensor.release()
        return found

    if tensor.size < PIECE:
        return convert()
    return ir.LazyTensor(convert, form.dtype, ir.Shape(tensor.shape.numpy()), name=name)
