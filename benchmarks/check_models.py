"""Models of about a thousand nodes for `check_speed.py`: residual convolutions, and transformer blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from pathlib import Path


class Builder:
    """Nodes and constants that are added one by one; every call gives the name of its result."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(0)

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """A node; returns the name of its output."""
        name = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [f"{name}_out"], name=name, **attributes))
        return f"{name}_out"

    def constant(self, values: Any, dtype: type = np.float32) -> str:
        """A constant; returns its name."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def weight(self, *shape: int) -> str:
        """A constant of small random numbers; returns its name."""
        return self.constant(self._random.standard_normal(shape) * 0.02)

    def save(self, path: Path, x: onnx.ValueInfoProto, y: onnx.ValueInfoProto) -> Path:
        """Writes the model with one input and one output; returns the path."""
        graph = helper.make_graph(self.nodes, "g", [x], [y], self.constants)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
        return path


def convolutions(path: Path, nodes: int = 1000, channels: int = 32) -> Path:
    """Conv, Relu and a residual Add, over and over; input [N, channels, 32, 32]."""
    made = Builder()
    x = "x"
    while len(made.nodes) < nodes:
        bias = made.constant(np.zeros(channels))
        y = made.add("Conv", x, made.weight(channels, channels, 3, 3), bias, pads=[1, 1, 1, 1])
        x = made.add("Add", made.add("Relu", y), x)
    shape = ["N", channels, 32, 32]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", x)]
    return made.save(path, ends[0], ends[1])


def transformer(path: Path, nodes: int = 1000, width: int = 128, heads: int = 4) -> Path:
    """Blocks of LayerNorm as exporters write it, attention and a GELU feed-forward part; input ids [B, S]."""
    made = Builder()
    x = made.add("Gather", made.weight(1000, width), "ids")
    while len(made.nodes) < nodes:
        x = made.add("Add", x, _attention(made, _norm(made, x, width), width, heads))
        x = made.add("Add", x, _feed_forward(made, _norm(made, x, width), width))
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["B", "S"])
    return made.save(path, ids, helper.make_tensor_value_info(x, TensorProto.FLOAT, ["B", "S", width]))


def _norm(made: Builder, x: str, width: int) -> str:
    axes = made.constant([-1], np.int64)
    centred = made.add("Sub", x, made.add("ReduceMean", x, axes))
    variance = made.add("ReduceMean", made.add("Pow", centred, made.constant(2)), axes)
    scaled = made.add("Div", centred, made.add("Sqrt", made.add("Add", variance, made.constant(1e-5))))
    return made.add("Add", made.add("Mul", scaled, made.constant(np.ones(width))), made.constant(np.zeros(width)))


def _linear(made: Builder, x: str, given: int, wanted: int) -> str:
    return made.add("Add", made.add("MatMul", x, made.weight(given, wanted)), made.constant(np.zeros(wanted)))


def _attention(made: Builder, x: str, width: int, heads: int) -> str:
    split = made.constant([0, 0, heads, width // heads], np.int64)

    def head(perm: list[int]) -> str:
        return made.add("Transpose", made.add("Reshape", _linear(made, x, width, width), split), perm=perm)

    scores = made.add("MatMul", head([0, 2, 1, 3]), head([0, 2, 3, 1]))
    weights = made.add("Softmax", made.add("Div", scores, made.constant(5.6)), axis=-1)
    mixed = made.add("Transpose", made.add("MatMul", weights, head([0, 2, 1, 3])), perm=[0, 2, 1, 3])
    return _linear(made, made.add("Reshape", mixed, made.constant([0, 0, width], np.int64)), width, width)


def _feed_forward(made: Builder, x: str, width: int) -> str:
    inner = _linear(made, x, width, 4 * width)
    erf = made.add("Erf", made.add("Div", inner, made.constant(2**0.5)))
    gelu = made.add("Mul", made.add("Mul", inner, made.add("Add", erf, made.constant(1))), made.constant(0.5))
    return _linear(made, gelu, 4 * width, width)
