"""The float model as quantization wants it: constants as initializers, named nodes, opset 13, normalisation folded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_ir as ir
from onnx import version_converter
from onnx_ir.passes import common

from deploykit import graph
from deploykit.errors import ModelError
from deploykit.quantize.facts import take
from deploykit.quantize.families import QUANTIZED_OPS
from deploykit.report import Finding, note

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

# QuantizeLinear takes an axis from here on (ONNX changelog, opset 13).
MINIMUM_OPSET = 13
# The version of the format from which on initializers are not inputs as well.
INITIALIZERS_ALONE = 4
NAMED = 3
# Tensors up to this size may hold axes, pads and shapes, which the version converter reads; larger ones are weights.
MAY_BE_READ = 1024
LARGEST_MESSAGE = 1_900_000_000


def load_float(path: Path, *, minimum_opset: int = MINIMUM_OPSET, fold: bool = True) -> tuple[ir.Model, list[Finding]]:
    """The float model at `path`, normalised for rewriting, with findings on what that changed.

    Raises ModelError DK350 when the model is quantized already, DK351 when its opset cannot be raised.
    """
    model = take(path)
    findings: list[Finding] = []
    refuse_quantized(model, path)
    if len(model.functions):
        common.InlinePass()(model)
    findings += _fix_defaults(model)
    version = graph.opset(model)
    if 0 < version < minimum_opset:  # 0: no operator of the standard domain at all
        model = raise_opset(model, minimum_opset, path)
        findings.append(
            note("DK352", f"the opset was raised from {version} to {minimum_opset}: Q/DQ per channel needs it")
        )
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    graph.name_nodes(model)
    folded = fold_batch_normalization(model.graph) if fold else 0
    if folded:
        findings.append(
            note("DK353", f"{folded} BatchNormalization nodes were folded into the convolution before them")
        )
    return graph.infer_shapes(model), findings


def _fix_defaults(model: ir.Model) -> list[Finding]:
    """Weights are no inputs: their integers could not follow another value that a caller gives.

    Files before version 4 of the format list all weights among the inputs, and mean constants.
    """
    defaults = [value.name for value in model.graph.inputs if value.is_initializer()]
    old = (model.ir_version or 0) < INITIALIZERS_ALONE
    common.RemoveInitializersFromInputsPass()(model)
    if model.graph.initializers or defaults:
        model.ir_version = max(model.ir_version or 0, INITIALIZERS_ALONE)
    if old or not defaults:
        return []
    names = ", ".join(repr(name) for name in defaults[:NAMED]) + (", ..." if len(defaults) > NAMED else "")
    text = f"{len(defaults)} inputs that have a value in the model are constants in the result: {names}"
    return [note("DK348", text, tensor=defaults[0])]


def refuse_quantized(model: ir.Model, path: Path) -> None:
    """Raises ModelError (DK350) for a model that has integer kernels already: quantizing twice adds error."""
    found = [node for node in model.graph.all_nodes() if node.op_type in QUANTIZED_OPS]
    if found:
        first = found[0]
        raise ModelError(
            f"{path.name} is quantized already: {len(found)} nodes such as {first.op_type} {first.name!r}",
            code="DK350",
            file=path,
            node=first.name,
            op=first.op_type,
            hint="give the float model that it was made from; deploykit inspect shows what is in the file",
        )


def raise_opset(model: ir.Model, version: int, path: Path) -> ir.Model:
    """The model at a higher opset of the default domain, by onnx's own version converter.

    Its weights stand aside meanwhile, since a protobuf message ends at 2 GB; `model` is not to be used afterwards.
    Raises ModelError (DK351) when the converter has no adapter for one of the operators, or what it makes is not valid.
    """
    weights: dict[str, ir.TensorProtocol] = {}
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is not None and tensor.nbytes > MAY_BE_READ and tensor.dtype != ir.DataType.STRING:
            weights[value.name or ""] = tensor
            value.const_value = _stand_in(tensor)
    try:
        raised: ir.Model = ir.from_proto(version_converter.convert_version(ir.to_proto(model), version))
        for name, tensor in weights.items():
            raised.graph.initializers[name].const_value = tensor
        outside = any(isinstance(value.const_value, ir.ExternalTensor) for value in raised.graph.initializers.values())
        if not outside and sum(tensor.nbytes for tensor in weights.values()) < LARGEST_MESSAGE:
            onnx.checker.check_model(ir.to_proto(raised))  # it takes external data by relative paths only
    except Exception as problem:  # the converter raises RuntimeError, ValueError and protobuf's own errors
        raise ModelError(
            f"{path.name} has opset {graph.opset(model)}, and it cannot be raised to {version}: {problem}",
            code="DK351",
            file=path,
            hint=f"export the model again with --opset {version} or higher",
        ) from problem
    raised.producer_name, raised.producer_version = model.producer_name, model.producer_version
    return raised


def _stand_in(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return ir.ExternalTensor(
        "weights",
        offset=0,
        length=tensor.nbytes,
        dtype=tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=tensor.name or "",
    )


def fold_batch_normalization(main: ir.Graph) -> int:
    """Folds BatchNormalization into the Conv that alone feeds it; returns how many were folded.

    w' = w * gamma / sqrt(var + eps), b' = (b - mean) * gamma / sqrt(var + eps) + beta, per output channel.
    """
    folded = 0
    for node in list(main):
        if node.op_type != "BatchNormalization" or len(node.outputs) != 1 or node.domain:
            continue
        source = node.inputs[0]
        conv = source.producer() if source is not None else None
        if source is None or conv is None or conv.op_type != "Conv" or conv.graph is not main:
            continue
        if source.is_graph_output() or len(source.uses()) != 1:
            continue
        constants = [constant_of(value) for value in (*conv.inputs[1:], *node.inputs[1:])]
        if any(constant is None for constant in constants):
            continue
        _fold(main, conv, node, [np.asarray(c) for c in constants])
        folded += 1
    return folded


def _fold(main: ir.Graph, conv: ir.Node, norm: ir.Node, constants: list[np.ndarray]) -> None:
    weight, *bias = constants[:-4]
    gamma, beta, mean, variance = constants[-4:]
    epsilon = norm.attributes.get_float("epsilon", 1e-5)
    gain = (gamma.astype(np.float64) / np.sqrt(variance.astype(np.float64) + epsilon)).reshape(-1)
    shifted = ((bias[0] if bias else np.zeros_like(mean)).astype(np.float64) - mean) * gain + beta
    scaled = np.empty_like(weight)
    np.multiply(weight, gain.reshape(-1, *[1] * (weight.ndim - 1)), out=scaled, dtype=np.float64, casting="same_kind")
    base = norm.outputs[0].name or norm.name or "bn"
    new_weight = add_constant(main, f"{base}_folded_weight", scaled)
    new_bias = add_constant(main, f"{base}_folded_bias", shifted.astype(weight.dtype))
    conv.replace_input_with(1, new_weight)
    if len(conv.inputs) == 3:
        conv.replace_input_with(2, new_bias)
    else:
        conv.resize_inputs(3)
        conv.replace_input_with(2, new_bias)
    out, kept = norm.outputs[0], conv.outputs[0]
    name = out.name
    replace_value(main, out, kept)
    main.remove(norm, safe=True)
    kept.name = name


def replace_value(main: ir.Graph, old: ir.Value, new: ir.Value) -> None:
    """Every use of `old`, graph outputs too, becomes `new`."""
    old.replace_all_uses_with(new, replace_graph_outputs=True)


def is_named(node: ir.Node, names: Collection[str]) -> bool:
    """Whether the names hold the node's own, or that of its operator, as `--exclude` gives them."""
    return node.name in names or node.op_type in names


def constant_of(value: ir.Value | None) -> np.ndarray | None:
    """The array of an initializer that nothing overrides, otherwise None."""
    if value is None or not value.is_initializer() or value.is_graph_input() or value.const_value is None:
        return None
    return np.asarray(value.const_value.numpy())


def is_constant(value: ir.Value | None) -> bool:
    """Whether the value is an initializer that no input overrides (its data is not read)."""
    return value is not None and value.is_initializer() and not value.is_graph_input()


def unique_name(main: ir.Graph, wanted: str, taken: set[str]) -> str:
    """`wanted`, or with the first free number behind it; the name is taken from then on."""
    name, number = wanted, 1
    while name in taken or name in main.initializers:
        name, number = f"{wanted}_{number}", number + 1
    taken.add(name)
    return name


def add_constant(main: ir.Graph, name: str, array: np.ndarray, taken: set[str] | None = None) -> ir.Value:
    """A new initializer of the graph holding `array`, under the name or a free variation of it."""
    final = unique_name(main, name, set() if taken is None else taken)
    value = ir.Value(
        name=final,
        type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
        shape=ir.Shape(array.shape),
        const_value=ir.tensor(np.asarray(array, order="C"), name=final),
    )
    main.register_initializer(value)
    return value


def names_in(model: ir.Model) -> set[str]:
    """All value and node names of the model, in every body."""
    taken = set(model.graph.initializers) | {value.name for value in model.graph.inputs if value.name}
    for node in model.graph.all_nodes():
        taken.update(value.name for value in node.outputs if value.name)
        if node.name:
            taken.add(node.name)
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                body = attribute.as_graph()
                taken |= set(body.initializers) | {value.name for value in body.inputs if value.name}
    return taken


def drop_unused_initializers(main: ir.Graph) -> None:
    """Removes initializers that nothing reads any more, in the order in which they stand."""
    for name, value in list(main.initializers.items()):
        if not value.uses() and not value.is_graph_output():
            del main.initializers[name]
