"""The float model with a switch a node: on, the node takes and gives half precision. One session, any set of nodes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from deploykit import graph, io
from deploykit.data import CarriedState
from deploykit.quantize.families import CONTROL_FLOW
from deploykit.quantize.half_rules import is_single, signature_of
from deploykit.quantize.prepare import names_in, unique_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from deploykit.data import Sample
    from deploykit.quantize.half_formats import HalfFormat

Array = np.ndarray[Any, Any]
SWITCHES = "deploykit_half_switches"
# Where(condition) and Cast of every float type; older models have no switches.
SINCE = 9


class Switches:
    """Runs the model with any set of its nodes in half precision, as engines do: computed wider, rounded at the edges.

    nodes: the names of those that can be switched; nodes inside control flow cannot.
    """

    def __init__(self, model: ir.Model, form: HalfFormat, candidates: Collection[str], keep: Mapping[str, str]) -> None:
        """model: the float model with inferred types, not changed. keep: {input: output} that is carried."""
        self._model = model.clone()
        self._form = form
        self._carry = dict(keep)
        main = self._model.graph
        chosen = [n for n in main if n.name in candidates and not (n.op_type in CONTROL_FLOW and not n.domain)]
        self.nodes = [node.name or "" for node in chosen]
        self._taken = names_in(self._model)
        self._flags = ir.Value(
            name=SWITCHES, type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([max(len(chosen), 1)])
        )
        for index, node in enumerate(chosen):
            self._switch(node, index)
        main.inputs.append(self._flags)
        with io.scratch_folder() as folder:
            path = Path(folder) / "switches.onnx"
            graph.save(self._model, path)
            self._session = _session(path)
        self._outputs = [output.name for output in self._session.get_outputs()]

    def run(self, samples: Sequence[Sample], on: Collection[str]) -> list[dict[str, Array]]:
        """The outputs for each sample, in order, with these nodes in half precision."""
        return list(self.each(samples, on))

    def each(self, samples: Sequence[Sample], on: Collection[str]) -> Iterator[dict[str, Array]]:
        """The same, one sample at a time."""
        chosen = set(on)
        flags = np.array([name in chosen for name in self.nodes] or [False])
        state = CarriedState(self._carry)
        for sample in samples:
            feeds = {**state.fill(sample.feeds), SWITCHES: flags}
            values = dict(zip(self._outputs, self._session.run(None, feeds), strict=True))
            state.update(values)
            yield values

    def _switch(self, node: ir.Node, index: int) -> None:
        main = self._model.graph
        found = signature_of(node, self._model.opset_imports, self._form)
        flag = self._put("Gather", [self._flags, self._index(index)], ir.DataType.BOOL)
        main.insert_before(node, [flag])
        for place, (value, half) in enumerate(zip(list(node.inputs), found.inputs, strict=True)):
            if half and value is not None:
                nodes = self._rounding(value, flag.outputs[0])
                main.insert_before(node, nodes)
                node.replace_input_with(place, nodes[-1].outputs[0])
        for value, half in zip(node.outputs, found.outputs, strict=True):
            if half and value.name and is_single(value):
                nodes = self._rounding(value, flag.outputs[0])
                after = nodes[-1].outputs[0]
                value.replace_all_uses_with(after, replace_graph_outputs=True)
                nodes[0].replace_input_with(0, value)
                nodes[-1].replace_input_with(2, value)
                value.name, after.name = after.name, value.name
                main.insert_after(node, nodes)

    def _rounding(self, value: ir.Value, flag: ir.Value) -> list[ir.Node]:
        down = self._put("Cast", [value], self._form.dtype, {"to": int(self._form.dtype)})
        up = self._put("Cast", down.outputs, ir.DataType.FLOAT, {"to": int(ir.DataType.FLOAT)})
        where = self._put("Where", [flag, up.outputs[0], value], ir.DataType.FLOAT)
        where.outputs[0].shape = value.shape
        return [down, up, where]

    def _index(self, index: int) -> ir.Value:
        name = unique_name(self._model.graph, f"switch_{index}", self._taken)
        value = ir.Value(
            name=name,
            type=ir.TensorType(ir.DataType.INT64),
            shape=ir.Shape([]),
            const_value=ir.tensor(np.array(index, np.int64), name=name),
        )
        self._model.graph.register_initializer(value)
        return value

    def _put(
        self, op: str, inputs: Sequence[ir.Value | None], dtype: ir.DataType, attributes: dict[str, int] | None = None
    ) -> ir.Node:
        name = unique_name(self._model.graph, f"switched_{op}", self._taken)
        node = ir.node(op, inputs, attributes=attributes or {}, num_outputs=1, name=name)
        node.outputs[0].name = name
        node.outputs[0].type = ir.TensorType(dtype)
        return node


def _session(path: Path) -> Any:
    """A session without graph optimisation, which would remove pairs of casts, and without memory kept for a call."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_cpu_mem_arena = options.enable_mem_pattern = False
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # other work wants the processor
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
