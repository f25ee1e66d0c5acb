"""Models to simplify, as exporters write them: shapes of ResNet-50 and BERT-base with random weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from pathlib import Path


class Writer:
    """Collects nodes and weights; every call of an operator gives its output's name."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.rng = np.random.default_rng(0)

    def op(self, kind: str, *inputs: str, **attributes: object) -> str:
        """One node."""
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [f"{name}_out"], name=name, **attributes))
        return f"{name}_out"

    def weight(self, *shape: int, scale: float = 0.05, around: float = 0.0) -> str:
        """A random initializer."""
        name = f"w{len(self.weights)}"
        values = self.rng.standard_normal(shape, dtype=np.float32) * np.float32(scale) + np.float32(around)
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def constant(self, *values: int, scalar: bool = False) -> str:
        """A Constant node of integers."""
        array = np.array(values[0] if scalar else values, np.int64)
        return self.op("Constant", value=numpy_helper.from_array(array))

    def number(self, value: float) -> str:
        """A Constant node of one float."""
        return self.op("Constant", value=numpy_helper.from_array(np.array(value, np.float32)))

    def save(self, path: Path, inputs: list[onnx.ValueInfoProto], output: onnx.ValueInfoProto, last: str) -> None:
        """Writes the model; `last` becomes the output."""
        self.nodes.append(helper.make_node("Identity", [last], [output.name], name="Identity_out"))
        graph = helper.make_graph(self.nodes, "g", inputs, [output], self.weights)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def resnet50(path: Path) -> None:
    """ResNet-50 with its batch normalizations, 25.5 million weights."""
    to = Writer()

    def conv(x: str, before: int, after: int, size: int, stride: int = 1) -> str:
        pads = [size // 2] * 4
        weight = to.weight(after, before, size, size, scale=(2 / (before * size * size)) ** 0.5)
        y = to.op("Conv", x, weight, kernel_shape=[size, size], strides=[stride, stride], pads=pads)
        norm = [to.weight(after, around=around) for around in (1.0, 0.0, 0.0, 1.0)]
        return to.op("BatchNormalization", y, *norm, epsilon=1e-5)

    x = to.op("Relu", conv("x", 3, 64, 7, 2))
    x = to.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    before = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            step = stride if block == 0 else 1
            y = to.op("Relu", conv(x, before, width, 1))
            y = to.op("Relu", conv(y, width, width, 3, step))
            y = conv(y, width, width * 4, 1)
            short = conv(x, before, width * 4, 1, step) if block == 0 else x
            x = to.op("Relu", to.op("Add", y, short))
            before = width * 4
    x = to.op("GlobalAveragePool", x)
    rows = to.op("Unsqueeze", to.op("Gather", to.op("Shape", x), to.constant(0, scalar=True)), to.constant(0))
    x = to.op("Reshape", x, to.op("Concat", rows, to.constant(-1), axis=0))
    x = to.op("Add", to.op("MatMul", x, to.weight(2048, 1000, scale=0.02)), to.weight(1000))
    images = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 224, 224])
    to.save(path, [images], helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 1000]), x)


def bert_base(path: Path, layers: int = 12, width: int = 768, heads: int = 12) -> None:
    """BERT-base as the TorchScript exporter writes it: shapes computed, LayerNorm and GELU in parts."""
    to = Writer()

    def linear(x: str, before: int, after: int) -> str:
        return to.op("Add", to.op("MatMul", x, to.weight(before, after, scale=0.02)), to.weight(after, scale=0.02))

    def size(x: str, axis: int) -> str:
        return to.op("Unsqueeze", to.op("Gather", to.op("Shape", x), to.constant(axis, scalar=True)), to.constant(0))

    def norm(x: str) -> str:
        centred = to.op("Sub", x, to.op("ReduceMean", x, axes=[-1]))
        variance = to.op("ReduceMean", to.op("Pow", centred, to.number(2.0)), axes=[-1])
        scaled = to.op("Div", centred, to.op("Sqrt", to.op("Add", variance, to.number(1e-12))))
        return to.op("Add", to.op("Mul", scaled, to.weight(width, around=1.0)), to.weight(width))

    def split(x: str, order: list[int]) -> str:
        shape = to.op("Concat", size(x, 0), size(x, 1), to.constant(heads), to.constant(width // heads), axis=0)
        return to.op("Transpose", to.op("Reshape", x, shape), perm=order)

    def gelu(x: str) -> str:
        erf = to.op("Add", to.op("Erf", to.op("Div", x, to.number(2**0.5))), to.number(1.0))
        return to.op("Mul", to.op("Mul", x, erf), to.number(0.5))

    words = to.op("Gather", to.weight(30522, width, scale=0.02), "ids")
    x = norm(to.op("Add", words, to.op("Gather", to.weight(2, width, scale=0.02), "types")))
    mask = to.op("Unsqueeze", to.op("Unsqueeze", to.op("Cast", "mask", to=1), to.constant(1)), to.constant(2))
    bias = to.op("Mul", to.op("Sub", to.number(1.0), mask), to.number(-10000.0))
    for _ in range(layers):
        q, k, v = (linear(x, width, width) for _ in range(3))
        scores = to.op("MatMul", split(q, [0, 2, 1, 3]), split(k, [0, 2, 3, 1]))
        scores = to.op("Add", to.op("Div", scores, to.number((width // heads) ** 0.5)), bias)
        mixed = to.op("MatMul", to.op("Softmax", scores, axis=-1), split(v, [0, 2, 1, 3]))
        mixed = to.op("Transpose", mixed, perm=[0, 2, 1, 3])
        shape = to.op("Concat", size(mixed, 0), size(mixed, 1), to.constant(width), axis=0)
        x = norm(to.op("Add", linear(to.op("Reshape", mixed, shape), width, width), x))
        x = norm(to.op("Add", linear(gelu(linear(x, width, width * 4)), width * 4, width), x))
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"]) for name in ("ids", "types", "mask")
    ]
    to.save(path, inputs, helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "length", width]), x)
