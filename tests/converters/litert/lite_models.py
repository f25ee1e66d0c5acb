"""Small LiteRT models, written by the schema itself, and what they compute, in numpy."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.tools import flatbuffer_utils

from deploykit.artifact import TensorSpec

Array = np.ndarray[Any, Any]


@dataclasses.dataclass
class Lite:
    """A file with its interface and reference."""

    content: bytes
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    weights: list[tuple[Array, Array]]

    def hidden(self, x: Array) -> Array:
        w, b = self.weights[0]
        return np.maximum(x @ w.T + b, 0)

    def __call__(self, x: Array) -> Array:
        w, b = self.weights[1]
        return self.hidden(x) @ w.T + b


def dense(
    *, features: int = 24, hidden: int = 40, classes: int = 5, signature: bool = True, outlier: float = 0
) -> Lite:
    """Two fully connected layers, ReLU between them; the batch varies."""
    rng = np.random.default_rng(3)
    weights = [
        (
            rng.standard_normal((hidden, features)).astype(np.float32) / 5,
            rng.standard_normal(hidden).astype(np.float32),
        ),
        (
            rng.standard_normal((classes, hidden)).astype(np.float32) / 5,
            rng.standard_normal(classes).astype(np.float32),
        ),
    ]
    if outlier:
        weights[0][0][0, 0] = outlier
    model, graph = schema.ModelT(), schema.SubGraphT()
    model.version, model.buffers = 3, [schema.BufferT()]
    graph.tensors, graph.name = [], "main"
    x = add_tensor(model, graph, "x_in", (1, features), varies=True)
    h = add_tensor(model, graph, "inner/relu", (1, hidden), varies=True)
    y = add_tensor(model, graph, "y_out", (1, classes), varies=True)
    w1, b1, w2, b2 = (
        add_tensor(model, graph, name, array.shape, array)
        for name, array in zip(("w1", "b1", "w2", "b2"), [a for pair in weights for a in pair], strict=True)
    )
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.FULLY_CONNECTED
    code.version = 1
    model.operatorCodes = [code]
    graph.operators = []
    for ins, out, activation in (([x, w1, b1], h, 1), ([h, w2, b2], y, 0)):
        operator = schema.OperatorT()
        operator.opcodeIndex, operator.inputs, operator.outputs = 0, ins, [out]
        operator.builtinOptionsType = schema.BuiltinOptions.FullyConnectedOptions
        operator.builtinOptions = schema.FullyConnectedOptionsT()
        operator.builtinOptions.fusedActivationFunction = activation
        graph.operators.append(operator)
    graph.inputs, graph.outputs = [x], [y]
    model.subgraphs = [graph]
    if signature:
        model.signatureDefs = [sign({"x": x}, {"y": y})]
    names = ("x", "y") if signature else ("x_in", "y_out")
    ports = (TensorSpec(names[0], "float32", ("n", features)),), (TensorSpec(names[1], "float32", ("n", classes)),)
    return Lite(bytes(flatbuffer_utils.convert_object_to_bytearray(model)), *ports, weights)


def add_tensor(
    model: Any, graph: Any, name: str, shape: tuple[int, ...], values: Array | None = None, *, varies: bool = False
) -> int:
    tensor = schema.TensorT()
    tensor.name, tensor.shape, tensor.type = name, list(shape), schema.TensorType.FLOAT32
    if varies:
        tensor.shapeSignature = [-1, *shape[1:]]
    tensor.buffer = 0
    if values is not None:
        buffer = schema.BufferT()
        buffer.data = np.frombuffer(values.astype(np.float32).tobytes(), np.uint8)
        tensor.buffer = len(model.buffers)
        model.buffers.append(buffer)
    graph.tensors.append(tensor)
    return len(graph.tensors) - 1


def sign(inputs: dict[str, int], outputs: dict[str, int]) -> Any:
    signature = schema.SignatureDefT()
    signature.signatureKey, signature.subgraphIndex = "serving_default", 0
    sides = []
    for side in (inputs, outputs):
        pairs = []
        for name, index in side.items():
            pair = schema.TensorMapT()
            pair.name, pair.tensorIndex = name, index
            pairs.append(pair)
        sides.append(pairs)
    signature.inputs, signature.outputs = sides
    return signature


def batch(size: int, features: int = 24, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((size, features)).astype(np.float32)


def sqnr(reference: Array, found: Array) -> float:
    return float(10 * np.log10((reference**2).sum() / ((reference - found) ** 2).sum()))
