"""Products whose activations are quantized at run time, with float activations and the same int8 weights."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx_ir as ir

from deploykit.optimizers.rewrites.cleanup import remove_unused
from deploykit.optimizers.rewrites.decomposition import in_function
from deploykit.optimizers.rewrites.emitting import Emitter, Names, known_array
from deploykit.optimizers.rewrites.qlinear_to_qdq import attributes_of, from_dynamic, given
from deploykit.optimizers.rewriting import Change, Rewrite

if TYPE_CHECKING:
    from collections.abc import Sequence

    Array = np.ndarray[Any, Any]

_OPERATORS = {"MatMulInteger": ("MatMul", -1), "ConvInteger": ("Conv", 0)}


@dataclasses.dataclass(frozen=True)
class _Product:
    """One product: float input, integer weights with their grid, and the node whose output is the float result.

    axis: of the weights' channels. bias: added in the end.
    """

    node: ir.Node
    end: ir.Node
    operator: str
    x: ir.Value
    weights: ir.Value
    scale: Array
    zero: ir.Value | None
    axis: int
    bias: ir.Value | None = None


class WeightOnly(Rewrite):
    """Takes DynamicQuantizeLinear away: weights stay int8 behind a DequantizeLinear, activations are float.

    Closer to the float model than before, and the file is as small. Only activation ranges that calibration finds give
    int8 arithmetic on a target that has no quantization at run time.
    """

    name: ClassVar[str] = "weight-only"
    title: ClassVar[str] = "computes dynamically quantized products with float activations and int8 weights"

    def applies(self, node: ir.Node, model: ir.Model) -> bool:
        """Whether the node is a product of dynamically quantized activations, or quantizes them for such products."""
        products = _products_of(node)
        return bool(products) and not in_function(node, model) and _has_axis(products, model)

    def apply(self, model: ir.Model, nodes: Sequence[ir.Node]) -> list[Change]:
        """Replaces each product together with what quantized its input and scaled its result."""
        names = Names(model)
        changes, done = [], set()
        for node in nodes:
            if node.graph is None or in_function(node, model):
                continue
            for product in _products_of(node):
                if id(product.node) not in done and _has_axis([product], model):
                    done.add(id(product.node))
                    changes.append(_replace(product, model, names))
        return changes


def _has_axis(products: Sequence[_Product], model: ir.Model) -> bool:
    from deploykit import graph

    return graph.opset(model) >= (13 if any(product.scale.size > 1 for product in products) else 10)


def _products_of(node: ir.Node) -> list[_Product]:
    """The products that a node belongs to; none unless all readers of a DynamicQuantizeLinear are such products."""
    if node.op_type == "DynamicQuantizeLinear" and node.domain in ("", "ai.onnx"):
        readers = [reader for reader, _ in node.outputs[0].uses()]
        found = [_product(reader) for reader in readers]
        return [product for product in found if product is not None] if all(found) else []
    product = _product(node)
    return [] if product is None else [product]


def _product(node: ir.Node) -> _Product | None:
    if node.domain == "com.microsoft" and node.op_type == "DynamicQuantizeMatMul":
        x, weights, scale, zero, bias = (given(node, at) for at in range(5))
        return _checked(node, node, "MatMul", x, weights, known_array(scale), zero, -1, bias)
    quantizer = from_dynamic(given(node, 0))
    if quantizer is None:
        return None
    x = quantizer.inputs[0]
    if node.domain == "com.microsoft" and node.op_type == "MatMulIntegerToFloat":
        if given(node, 2) is not quantizer.outputs[1]:
            return None
        weights, scale, zero, bias = (given(node, at) for at in (1, 3, 5, 6))
        return _checked(node, node, "MatMul", x, weights, known_array(scale), zero, -1, bias)
    if node.domain not in ("", "ai.onnx") or node.op_type not in _OPERATORS:
        return None
    operator, axis = _OPERATORS[node.op_type]
    end, scale_array = _scaled(node, quantizer)
    if end is None:
        return None
    return _checked(node, end, operator, x, given(node, 1), scale_array, given(node, 3), axis, None)


def _scaled(node: ir.Node, quantizer: ir.Node) -> tuple[ir.Node | None, Array | None]:
    """Follows Cast and Mul up to the float result: its node, and what is multiplied in beside the input's scale."""
    cast = _reader(node, "Cast")
    if cast is None or cast.attributes["to"].as_int() != ir.DataType.FLOAT:
        return None, None
    scale: Array = np.ones((), np.float32)
    current, scaled, weighted = cast, False, False
    while (multiply := _reader(current, "Mul")) is not None and not (scaled and weighted):
        other = multiply.inputs[0] if multiply.inputs[1] is current.outputs[0] else multiply.inputs[1]
        for factor in _factors(other):
            constant = known_array(factor)
            if factor is quantizer.outputs[1] and not scaled:
                scaled = True
            elif constant is not None and not weighted:
                scale, weighted = constant, True
            else:
                return None, None
        current = multiply
    return (current, scale) if scaled and weighted else (None, None)


def _reader(node: ir.Node, op: str) -> ir.Node | None:
    """The only reader of a node's only output, when it is this operator."""
    uses = list(node.outputs[0].uses())
    if len(uses) != 1 or node.outputs[0].is_graph_output() or uses[0][0].op_type != op:
        return None
    return uses[0][0]


def _factors(value: ir.Value | None) -> list[ir.Value | None]:
    """The two that a Mul makes a value of, or the value itself."""
    producer = None if value is None else value.producer()
    return list(producer.inputs) if producer is not None and producer.op_type == "Mul" else [value]


def _checked(
    node: ir.Node,
    end: ir.Node,
    operator: str,
    x: ir.Value | None,
    weights: ir.Value | None,
    scale: Array | None,
    zero: ir.Value | None,
    axis: int,
    bias: ir.Value | None,
) -> _Product | None:
    """None unless weights and their grid are constant, with one scale or one for each output channel."""
    array = known_array(weights)
    if x is None or weights is None or array is None or scale is None:
        return None
    zeros = known_array(zero) if zero is not None else np.zeros((), array.dtype)
    if zeros is None or zeros.size not in (1, scale.size):
        return None
    if scale.size not in (1, array.shape[axis]) or (scale.size > 1 and array.ndim < 2):
        return None
    return _Product(node, end, operator, x, weights, scale, zero, axis, bias)


def _replace(product: _Product, model: ir.Model, names: Names) -> Change:
    emitter = Emitter(product.end, model)
    array = known_array(product.weights)
    assert array is not None  # checked before
    several = product.scale.size > 1
    scale = product.scale.astype(np.float32).reshape(-1 if several else ())
    zeros = known_array(product.zero) if product.zero is not None else None
    zero = np.zeros((), array.dtype) if zeros is None else zeros
    zero = np.broadcast_to(zero.reshape(-1) if zero.size > 1 else zero.reshape(()), scale.shape)
    axis = product.axis % array.ndim if several else None
    weights = emitter.op("DequantizeLinear", product.weights, emitter.const(scale), emitter.const(zero), axis=axis)
    settings = attributes_of(product.node) if product.operator == "Conv" else {}
    result = emitter.op(product.operator, product.x, weights, **settings)
    if product.bias is not None:
        result = emitter.op("Add", result, product.bias)
    # The end goes with `commit`; what only served it goes after.
    before = [value for value in product.end.inputs if value is not None]
    added = emitter.commit([result], names)
    gone = [product.end.name or product.end.op_type, *remove_unused(before)]
    text = f"{product.node.op_type} {product.node.name} as {product.operator} with float activations and int8 weights"
    return Change(tuple(dict.fromkeys(gone)), added, text, bound="int8")
