"""Probes: what a node computes on the way, and what lies inside control flow, as tensors that calibration can measure.

They are added to a copy of the model, which only the measurement runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from deploykit.quantize.families import CONTROL_FLOW
from deploykit.quantize.half_islands import DIVISORS, Evidence
from deploykit.quantize.half_rules import is_single
from deploykit.quantize.prepare import is_constant, names_in, unique_name

if TYPE_CHECKING:
    from collections.abc import Mapping

# The operator that sums what these sum, without signs: halves of a sum may be large where the whole is not.
_SUMS = {"ReduceMean": "ReduceL1", "ReduceL2": "ReduceSumSquare"}
# They square their input, or its distance from the mean.
_NORMALIZE = (
    "GroupNormalization InstanceNormalization LRN LayerNormalization LpNormalization MeanVarianceNormalization "
    "RMSNormalization"
)
_SQUARES = frozenset(_NORMALIZE.split())
_SIGN_SINCE = 9


class Probes:
    """A copy of a model with probes (`model`), and what their measured values say (`read`)."""

    def __init__(self, model: ir.Model) -> None:
        """model: with named nodes and inferred types; it stays as it is."""
        self.model = model.clone()
        self._taken = names_in(self.model)
        self._inside: dict[str, tuple[str, str]] = {}  # probe -> node, what it measures
        self._smallest: dict[str, str] = {}  # probe -> tensor
        self._bodies: dict[str, str] = {}  # probe -> tensor of a body
        graph = self.model.graph
        versions = self.model.opset_imports.get("", 0)
        for node in list(graph):
            if node.domain:
                continue
            if node.op_type in CONTROL_FLOW:
                self._bodies.update({probe.name or "": name for probe, name in self._open(node)})
            elif node.op_type in _SUMS or node.op_type == "ReduceSum":
                self._add_sum(node)
            elif node.op_type in DIVISORS and versions >= _SIGN_SINCE:
                self._add_divisor(node.inputs[DIVISORS[node.op_type]])

    def read(self, peaks: Mapping[str, float]) -> Evidence:
        """The evidence in the measured largest magnitudes of the copy's tensors."""
        inside = {node: (peaks[probe], what) for probe, (node, what) in self._inside.items() if probe in peaks}
        for node in self.model.graph:
            peak = peaks.get(node.inputs[0].name or "", 0.0) if node.inputs and node.inputs[0] is not None else 0.0
            if node.op_type in _SQUARES and not node.domain:
                inside[node.name or ""] = (peak**2, "the square of its input")
        probes = {*self._inside, *self._smallest, *self._bodies}
        found = {name: peak for name, peak in peaks.items() if name not in probes}
        for probe, name in self._bodies.items():
            if peaks.get(probe, 0.0) > 0.0:
                found[name] = max(peaks[probe], found.get(name, 0.0))
        smallest = {name: 1.0 / peaks[probe] for probe, name in self._smallest.items() if peaks.get(probe, 0.0) > 0.0}
        return Evidence(found, smallest, inside)

    def _add_sum(self, node: ir.Node) -> None:
        value = node.inputs[0]
        if value is None or not is_single(value):
            return
        rest = list(node.inputs[1:])
        if node.op_type == "ReduceSum":
            value = self._put(node.graph, "Abs", [value])
        attributes = [ir.Attr(a.name, a.type, a.value) for a in node.attributes.values()]
        probe = self._put(node.graph, _SUMS.get(node.op_type, "ReduceSum"), [value, *rest], attributes)
        what = "the sum of squares inside it" if node.op_type == "ReduceL2" else "the sum of magnitudes inside it"
        self._inside[probe.name or ""] = (node.name or "", what)

    def _add_divisor(self, value: ir.Value | None) -> None:
        """1 / |v|, and 0 for 0: the largest belongs to the smallest |v|."""
        if value is None or not is_single(value) or is_constant(value) or value.name in self._smallest.values():
            return
        graph = self.model.graph
        if value.graph is not None and value.graph is not graph:
            return
        size = self._put(graph, "Abs", [value])
        sign = self._put(graph, "Sign", [size])
        # 1 - sign: 1 where the value is 0, so that nothing divides by 0.
        zero = self._put(graph, "Sub", [self._one(graph), sign])
        probe = self._put(graph, "Div", [sign, self._put(graph, "Add", [size, zero])])
        self._smallest[probe.name or ""] = value.name or ""

    def _open(self, node: ir.Node) -> list[tuple[ir.Value, str]]:
        """Makes the largest magnitudes of a control-flow node's bodies outputs of the node, each a vector."""
        bodies = [a.as_graph() for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH]
        inner = [self._peaks_in(body) for body in bodies]
        opened = []
        for own, found in zip(bodies, inner, strict=True):
            for probe, name in found:
                for body in bodies:
                    body.outputs.append(probe if body is own else self._zero(body))
                node.resize_outputs(len(node.outputs) + 1)
                out = node.outputs[-1]
                out.name = unique_name(self.model.graph, f"{probe.name}_out", self._taken)
                out.type = ir.TensorType(ir.DataType.FLOAT)
                opened.append((out, name))
        if node.op_type == "Scan" and opened:
            for attribute in ("scan_output_axes", "scan_output_directions"):
                if attribute in node.attributes:
                    more = [*node.attributes.get_ints(attribute, ()), *[0] * len(opened)]
                    node.attributes[attribute] = ir.AttrInt64s(attribute, more)
        return opened

    def _peaks_in(self, body: ir.Graph) -> list[tuple[ir.Value, str]]:
        found: list[tuple[ir.Value, str]] = []
        for node in list(body):
            below = self._open(node) if node.op_type in CONTROL_FLOW and not node.domain else []
            below += [
                (value, value.name)
                for value in node.outputs
                if value.name and is_single(value) and all(value is not out for out, _ in below)
            ]
            found += [(self._peak(body, value), name) for value, name in below]
        return found

    def _peak(self, body: ir.Graph, value: ir.Value) -> ir.Value:
        """The largest |v| as a vector of one element; 0 when there is no element."""
        flat = self._put(body, "Reshape", [value, self._constant(body, np.array([-1], np.int64))])
        size = self._put(body, "Abs", [flat])
        with_zero = self._put(body, "Concat", [size, self._zero(body)], [ir.AttrInt64("axis", 0)])
        return self._put(body, "ReduceMax", [with_zero], [ir.AttrInt64("keepdims", 1)])

    def _zero(self, graph: ir.Graph) -> ir.Value:
        return self._constant(graph, np.zeros(1, np.float32))

    def _one(self, graph: ir.Graph) -> ir.Value:
        return self._constant(graph, np.ones((), np.float32))

    def _constant(self, graph: ir.Graph, array: np.ndarray) -> ir.Value:
        return self._put(graph, "Constant", [], [ir.AttrTensor("value", ir.tensor(array))], array.dtype)

    def _put(
        self,
        graph: ir.Graph | ir.Function | None,
        op: str,
        inputs: list[ir.Value | None],
        attributes: list[ir.Attr] | None = None,
        dtype: np.dtype | type = np.float32,
    ) -> ir.Value:
        assert isinstance(graph, ir.Graph)
        name = unique_name(graph, f"probe_{op}", self._taken)
        node = ir.Node("", op, inputs, attributes or [], num_outputs=1, name=name)
        node.outputs[0].name = name
        node.outputs[0].type = ir.TensorType(ir.DataType.from_numpy(np.dtype(dtype)))
        graph.append(node)
        return node.outputs[0]
