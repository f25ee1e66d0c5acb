"""A deep model whose outputs feel every node, and faults to plant in it."""

from __future__ import annotations

import copy

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

CHANNELS, SIZE = 8, 12


def deep(nodes=1000, decay=0.86):
    """Residual blocks of eight nodes; tensor names as exporters give them. decay: below 0.9 its values stay small."""
    rng = np.random.default_rng(0)
    made, initializers = [], []

    def constant(name, array):
        initializers.append(numpy_helper.from_array(np.asarray(array, np.float32), name))
        return name

    def node(op, inputs, **attributes):
        number = len(made) + 1
        out = f"/block.{number // 8}/{op}_{number}/out"
        made.append(helper.make_node(op, inputs, [out], name=f"/block.{number // 8}/{op}_{number}", **attributes))
        return out

    x = "x"
    while len(made) < nodes - 8:
        k = len(made)
        weight = constant(f"w{k}", rng.standard_normal((CHANNELS, CHANNELS, 3, 3)) * 0.1)
        bias = constant(f"b{k}", rng.standard_normal(CHANNELS) * 0.05)
        active = node("Relu", [node("Conv", [x, weight, bias], pads=[1, 1, 1, 1])])
        scaled = node("Mul", [active, constant(f"s{k}", rng.uniform(0.5, 1, (1, CHANNELS, 1, 1)))])
        gate = node("Sigmoid", [node("GlobalAveragePool", [scaled])])
        total = node("Add", [x, node("Mul", [scaled, gate])])
        x = node("Mul", [total, constant(f"d{k}", decay)])
    while len(made) < nodes:
        x = node("Neg", [x])
    shape = [1, CHANNELS, SIZE, SIZE]
    graph = helper.make_graph(
        made,
        "deep",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, shape)],
        initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def other_weight(model, number, factor=-1.0):
    """A copy with the weight of the convolution behind that node times a factor."""
    made = copy.deepcopy(model)
    for tensor in made.graph.initializer:
        if tensor.name == f"w{number}":
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(factor), tensor.name))
    return made


def changed(model, name, change):
    """A copy in which `change` has done something to the node of that name."""
    made = copy.deepcopy(model)
    change(next(node for node in made.graph.node if node.name == name))
    return made


def renamed(model):
    """A copy in which no tensor inside, node or weight has its name."""
    made = copy.deepcopy(model)
    outputs = {value.name for value in made.graph.output}
    names = {tensor.name: f"c{i}" for i, tensor in enumerate(made.graph.initializer)}
    for i, node in enumerate(made.graph.node):
        node.name = f"n{i}"
        names |= {name: f"v{i}" for name in node.output if name not in outputs}
    for node in made.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    for tensor in made.graph.initializer:
        tensor.name = names[tensor.name]
    return made


def halved(model):
    """A copy in float16 throughout."""
    made = copy.deepcopy(model)
    for tensor in made.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    for value in (*made.graph.input, *made.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return made


@pytest.fixture(scope="session")
def faults():
    """The functions above by name."""
    return {f.__name__: f for f in (deep, other_weight, changed, renamed, halved)}


@pytest.fixture(scope="session")
def model():
    return deep()


@pytest.fixture(scope="session")
def small():
    return deep(480)


@pytest.fixture
def locate(tmp_path):
    """locate(reference, candidate) -> what `locate_job` finds; models are saved first, paths taken as they are."""
    from deploykit.data.request import data_request
    from deploykit.locating.job import locate_job

    def saved(given, name):
        if not isinstance(given, onnx.ModelProto):
            return str(given)
        onnx.save(given, tmp_path / name)
        return str(tmp_path / name)

    def call(reference, candidate, row="fp32", data=None, **more):
        request = data_request(data, "parity", samples=2, seed=0, label=None, dims={}, contract=None)
        return locate_job(saved(reference, "reference.onnx"), saved(candidate, "candidate.onnx"), request, row, **more)

    return call
