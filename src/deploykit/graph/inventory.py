"""What is in a model, in numbers: operators, parameters, MACs, dynamic dimensions, quantization."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from deploykit.graph.counting import MAC_OPS, macs
from deploykit.graph.naming import all_nodes, name_nodes
from deploykit.graph.signature import FLOATS, constant_of, interface, opset, precision_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from deploykit.artifact import TensorSpec

_INTEGER_WEIGHTS = {
    ir.DataType.INT8,
    ir.DataType.UINT8,
    ir.DataType.INT4,
    ir.DataType.UINT4,
    ir.DataType.INT16,
    ir.DataType.UINT16,
}
_QUANTIZED_OPS = {"QLinearConv", "QLinearMatMul", "QGemm", "QAttention", "ConvInteger", "MatMulInteger"} | {
    "MatMulIntegerToFloat",
    "DynamicQuantizeMatMul",
    "DynamicQuantizeLSTM",
}
_QDQ = {"QuantizeLinear", "DequantizeLinear"}


def summary(model: ir.Model, dims: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Facts of a model as JSON values; the model is not changed.

    inputs, outputs; opset; domains {domain: version}; operators {op: count}, subgraphs and functions included;
    nodes; parameters (elements of weights, constants of shapes and axes left out); initializer_bytes; macs and
    macs_by_op at `dims` (1 for a symbolic dimension not given, stated in macs_dims); dynamic_dims {input: [symbols]};
    precision; quantization (see `quantization`); producer; ir_version; metadata.
    """
    inputs, outputs = interface(model)
    named = name_nodes(model.clone())
    counts = macs(named, dims)
    kinds = {node.name: _label(node) for node in all_nodes(named)}
    by_op: dict[str, int] = {}
    for name, count in counts.items():
        by_op[kinds[name]] = by_op.get(kinds[name], 0) + count
    histogram: dict[str, int] = {}
    for node in all_nodes(named):
        histogram[_label(node)] = histogram.get(_label(node), 0) + 1
    return {
        "inputs": [spec.as_dict() for spec in inputs],
        "outputs": [spec.as_dict() for spec in outputs],
        "opset": opset(model) or None,
        "domains": {domain or "ai.onnx": version for domain, version in sorted(model.opset_imports.items())},
        "operators": dict(sorted(histogram.items(), key=lambda item: (-item[1], item[0]))),
        "nodes": sum(histogram.values()),
        "functions": len(model.functions),
        "parameters": sum(tensor.size for tensor in weights(model)),
        "initializer_bytes": sum(
            value.const_value.nbytes
            for graph in model.graphs()
            for value in graph.initializers.values()
            if value.const_value is not None and value.const_value.dtype != ir.DataType.STRING
        ),
        "macs": sum(counts.values()),
        "macs_by_op": dict(sorted(by_op.items(), key=lambda item: (-item[1], item[0]))),
        "macs_dims": {name: (dims or {}).get(name, 1) for name in _symbols(inputs)},
        "dynamic_dims": {
            spec.name: [dim for dim in spec.shape if isinstance(dim, str)]
            for spec in inputs
            if spec.shape is not None and any(isinstance(dim, str) for dim in spec.shape)
        },
        "precision": precision_of(model),
        "quantization": _quantization(named, counts),
        "producer": " ".join(part for part in (model.producer_name, model.producer_version) if part) or None,
        "ir_version": model.ir_version,
        "metadata": dict(sorted(model.metadata_props.items())),
    }


def _label(node: ir.Node) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def _symbols(inputs: tuple[TensorSpec, ...]) -> list[str]:
    found = [dim for spec in inputs for dim in spec.shape or () if isinstance(dim, str)]
    return list(dict.fromkeys(found))


def weights(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    """Tensors that training made: float and low-bit integer constants, and int32 biases; no scales, no zero points."""
    scales: set[int] = set()
    biases: set[int] = set()
    for node in all_nodes(model):
        if node.op_type in _QDQ or node.op_type in _QUANTIZED_OPS:
            positions = range(1, len(node.inputs)) if node.op_type in _QDQ else _scale_positions(node)
            scales.update(id(tensor) for at in positions if (tensor := constant_of(node.inputs[at])) is not None)
        if node.op_type in ("DequantizeLinear", "QLinearConv"):
            at = 0 if node.op_type == "DequantizeLinear" else 8
            tensor = constant_of(node.inputs[at]) if at < len(node.inputs) else None
            if tensor is not None and tensor.dtype == ir.DataType.INT32:
                biases.add(id(tensor))
    for tensor in _constants(model):
        if id(tensor) in scales:
            continue
        if tensor.dtype in FLOATS or (tensor.dtype in _INTEGER_WEIGHTS and tensor.size > 1) or id(tensor) in biases:
            yield tensor


def _scale_positions(node: ir.Node) -> list[int]:
    if node.op_type in ("QLinearConv", "QLinearMatMul"):
        return [at for at in (1, 2, 4, 5, 6, 7) if at < len(node.inputs)]
    if node.op_type in ("ConvInteger", "MatMulInteger"):
        return [at for at in (2, 3) if at < len(node.inputs)]
    return []


def _constants(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value.const_value
    for node in all_nodes(model):
        tensor = constant_of(node.outputs[0]) if node.op_type == "Constant" else None
        if tensor is not None:
            yield tensor


def quantization(model: ir.Model, dims: Mapping[str, int] | None = None) -> dict[str, Any]:
    """How much of a model is quantized: {"quantized", "nodes", "weight_only_nodes", "float_nodes", "macs_share"}.

    nodes: operators with MACs that compute on integers (QLinear..., ...Integer) or stand between DequantizeLinear on
    both operands; weight_only_nodes: only the weight is dequantized. macs_share: share of the MACs in `nodes`, None
    without MACs. This is what the graph asks for: what an engine's kernels really do is measured by `bench`.
    """
    named = name_nodes(model.clone())
    return _quantization(named, macs(named, dims))


def _quantization(named: ir.Model, counts: Mapping[str, int]) -> dict[str, Any]:
    full: list[str] = []
    weight_only: list[str] = []
    plain: list[str] = []
    any_qdq = False
    for node in all_nodes(named):
        any_qdq = any_qdq or node.op_type in _QDQ
        if node.op_type not in MAC_OPS:
            continue
        name = node.name or ""
        operands = [_is_dequantized(value) for value in node.inputs[:2]]
        if node.op_type in _QUANTIZED_OPS or (len(operands) == 2 and all(operands)):
            full.append(name)
        elif any(operands) or node.op_type == "MatMulNBits":
            weight_only.append(name)
        else:
            plain.append(name)
    total = sum(counts.values())
    return {
        "quantized": bool(full or weight_only or any_qdq),
        "nodes": len(full),
        "weight_only_nodes": len(weight_only),
        "float_nodes": len(plain),
        "macs_share": round(sum(counts.get(name, 0) for name in full) / total, 6) if total else None,
    }


def _is_dequantized(value: ir.Value | None) -> bool:
    """Whether a value comes from DequantizeLinear, layout changes in between allowed (Transpose of a weight)."""
    for _ in range(4):
        producer = value.producer() if value is not None else None
        if producer is None:
            return False
        if producer.op_type == "DequantizeLinear":
            return True
        if producer.op_type not in ("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Cast", "Flatten"):
            return False
        value = producer.inputs[0]
    return False
