"""Bias correction: what quantizing a layer adds to its output on average goes into its bias.

M. Nagel et al., Data-Free Quantization Through Weight Equalization and Bias Correction, ICCV 2019, section 4.2, with
the error measured on the calibration data. Each layer runs twice on the float activations, once as it is and once
with its input and weights quantized, so that one pass over the data gives the error that each layer adds by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from deploykit import graph
from deploykit.quantize.calibration import tapped_session
from deploykit.quantize.plan import Plan, activations_of
from deploykit.quantize.prepare import add_constant, constant_of, is_constant, names_in, unique_name
from deploykit.quantize.qdq import Inserter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from deploykit.quantize.qdq import Parameters
    from deploykit.target import QuantizationScheme

Array = np.ndarray[Any, Any]
# A shift is taken out where it is at least this share of the energy of the error of its channel.
SYSTEMATIC = 0.1


def correct_biases(model: ir.Model, errors: Mapping[str, Array]) -> list[str]:
    """Takes the mean error of each named node out of its bias, in place; returns the names of the nodes it could."""
    taken = names_in(model)
    done = []
    for node in list(model.graph):
        error = errors.get(node.name or "")
        if error is None or node.op_type not in _CORRECT:
            continue
        if _CORRECT[node.op_type](model.graph, node, error, taken):
            done.append(node.name or "")
    return done


def mean_errors(
    base: ir.Model, plan: Plan, parameters: Mapping[str, Parameters], scheme: QuantizationScheme, replay: Any
) -> dict[str, Array]:
    """Mean of (quantized minus float) of each output channel where it is systematic, otherwise 0; [channels] by node.

    plan, parameters: of the quantization, for any copy of `base`. replay: runs a session over the samples.
    """
    model, taps = _with_twins(base, plan, parameters, scheme)
    if not taps:
        return {}
    sums: dict[str, list[Array]] = {}
    count = 0
    with tapped_session(model, [tap for pair in taps.values() for tap in pair]) as session:
        for values in replay(session):
            count += 1
            for name, pair in taps.items():
                found = [values[tap].astype(np.float64) for tap in pair]
                sums[name] = [a + b for a, b in zip(sums[name], found, strict=True)] if name in sums else found
    errors = {}
    for name, (mean, square) in sums.items():
        mean, square = mean / count, square / count
        if np.isfinite(mean).all():
            # The rest is what single samples or positions add: a shift would only move it to the others.
            errors[name] = np.where(np.square(mean) >= SYSTEMATIC * square, mean, 0.0).astype(np.float32)
    return errors


def _with_twins(
    base: ir.Model, plan: Plan, parameters: Mapping[str, Parameters], scheme: QuantizationScheme
) -> tuple[ir.Model, dict[str, tuple[str, str]]]:
    """A copy of the model in which each layer has a quantized twin beside it.

    Also, by node name, the tensors that hold the mean and the mean square of what the twin adds.
    """
    model = base.clone()
    taken = names_in(model)
    wanted = {node.name for node in plan.nodes}
    twins = Plan(groups=plan.groups)
    pairs: list[tuple[ir.Node, ir.Node]] = []
    for node in list(model.graph):
        if node.name not in wanted or _CORRECT.get(node.op_type) is None or not _has_place(node):
            continue
        twin = ir.Node(
            node.domain,
            node.op_type,
            node.inputs,
            node.attributes.values(),
            num_outputs=1,
            name=unique_name(model.graph, f"{node.name}_twin", taken),
        )
        twin.outputs[0].name = unique_name(model.graph, f"{node.outputs[0].name}_twin", taken)
        twin.outputs[0].type, twin.outputs[0].shape = node.outputs[0].type, node.outputs[0].shape
        model.graph.insert_after(node, [twin])
        twins.nodes.append(twin)
        for index in activations_of(twin):
            value = twin.inputs[index]
            if value is not None:
                twins.read(value, twin, index)
        pairs.append((node, twin))
    if not pairs:
        return model, {}
    Inserter(model, twins, scheme, parameters).run()
    taps = {node.name or "": _differences(model, node, twin, taken) for node, twin in pairs}
    return graph.infer_shapes(model), {name: pair for name, pair in taps.items() if pair is not None}


def _differences(model: ir.Model, node: ir.Node, twin: ir.Node, taken: set[str]) -> tuple[str, str] | None:
    """Adds mean and mean square, over everything but the channels, of (twin minus node); their names."""
    shape = node.outputs[0].shape
    if shape is None:
        return None
    rank = len(shape)
    channel = 1 if node.op_type in {"Conv", "ConvTranspose"} else rank - 1
    axes = [axis for axis in range(rank) if axis != channel]
    main = model.graph

    def add(op: str, inputs: list[ir.Value], **attributes: Any) -> ir.Value:
        made = ir.node(op, inputs, attributes=attributes, name=unique_name(main, f"{twin.name}/{op}", taken))
        made.outputs[0].name = unique_name(main, f"{made.name}_out", taken)
        made.outputs[0].type = node.outputs[0].type
        main.append(made)
        found: ir.Value = made.outputs[0]
        return found

    def mean(value: ir.Value) -> str:
        if graph.opset(model) >= 18:
            constant = add_constant(main, f"{twin.name}_axes", np.array(axes, np.int64), taken)
            return add("ReduceMean", [value, constant], keepdims=0).name or ""
        return add("ReduceMean", [value], keepdims=0, axes=axes).name or ""

    difference = add("Sub", [twin.outputs[0], node.outputs[0]])
    return mean(difference), mean(add("Mul", [difference, difference]))


def _bias_add(node: ir.Node) -> tuple[ir.Node, int] | None:
    """The Add of a constant that alone reads a MatMul, with the index of the constant."""
    output = node.outputs[0]
    readers = list(output.uses())
    if len(readers) != 1 or output.is_graph_output():
        return None
    add = readers[0].node
    other = 1 - readers[0].idx
    if add.op_type != "Add" or add.domain or add.graph is not node.graph or not is_constant(add.inputs[other]):
        return None
    return add, other


def _has_place(node: ir.Node) -> bool:
    """Whether the node has a bias that can change, or room for one."""
    if node.op_type == "MatMul":
        return is_constant(node.inputs[1]) and _bias_add(node) is not None
    return len(node.inputs) < 3 or node.inputs[2] is None or is_constant(node.inputs[2])


def _correct_input(main: ir.Graph, node: ir.Node, error: Array, taken: set[str]) -> bool:
    """Conv, ConvTranspose, Gemm: input 2, which Gemm multiplies by beta."""
    beta = node.attributes.get_float("beta", 1.0) if node.op_type == "Gemm" else 1.0
    old = node.inputs[2] if len(node.inputs) > 2 else None
    bias = constant_of(old) if old is not None else np.zeros(error.shape, np.float32)
    if bias is None or beta == 0.0:
        return False
    name = old.name if old is not None else f"{node.name}_bias"
    new = add_constant(main, f"{name}_corrected", (bias - error / beta).astype(np.float32), taken)
    if len(node.inputs) < 3:
        node.resize_inputs(3)
    node.replace_input_with(2, new)
    return True


def _correct_add(main: ir.Graph, node: ir.Node, error: Array, taken: set[str]) -> bool:
    """MatMul: the constant that is added behind it."""
    found = _bias_add(node)
    if found is None:
        return False
    add, index = found
    old = add.inputs[index]
    bias = constant_of(old)
    if bias is None or old is None:
        return False
    new = add_constant(main, f"{old.name}_corrected", (bias - error).astype(np.float32), taken)
    add.replace_input_with(index, new)
    return True


_CORRECT: dict[str, Callable[[ir.Graph, ir.Node, Array, set[str]], bool]] = {
    "Conv": _correct_input,
    "ConvTranspose": _correct_input,
    "Gemm": _correct_input,
    "MatMul": _correct_add,
}
