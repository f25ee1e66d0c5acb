"""Each pass keeps inputs, outputs and values; models are in ONNX text, values from onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from deploykit import graph
from deploykit.optimizers.common_subexpressions import ShareCommonSubexpressions
from deploykit.optimizers.dead_nodes import RemoveDeadNodes
from deploykit.optimizers.fold_constants import FoldConstants, result_size
from deploykit.optimizers.fuse_affine import FuseAffine
from deploykit.optimizers.remove_nops import RemoveNops

HEADER = '<ir_version: 8, opset_import: ["": 17]>\n'


def parse(text: str) -> ir.Model:
    proto = onnx.parser.parse_model(HEADER + text)
    onnx.checker.check_model(proto)
    return ir.from_proto(proto)


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in graph.all_nodes(model)]


def run(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    content = proto.SerializeToString()
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"]).run(None, feeds)


def apply(step, text: str, **feeds: np.ndarray) -> ir.Model:
    """Runs one pass (shapes inferred, dead nodes removed after) and compares the outputs, names and order."""
    before = onnx.parser.parse_model(HEADER + text)
    model = graph.infer_shapes(parse(text))
    step.run(model)
    RemoveDeadNodes().run(model)
    after = ir.to_proto(model)
    onnx.checker.check_model(after, full_check=True)
    assert [o.name for o in after.graph.output] == [o.name for o in before.graph.output]
    assert [i.name for i in after.graph.input] == [i.name for i in before.graph.input]
    for old, new in zip(run(before, feeds), run(after, feeds), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-5, atol=1e-6)
    return model


X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2.5


def test_constants_are_computed():
    model = apply(
        FoldConstants(),
        """agraph (float[2,3] x) => (float[2,3] y) <float[1] a = {2}, float[1] b = {3}>
        { c = Add(a, b)
          y = Mul(x, c) }""",
        x=X,
    )
    assert operators(model) == ["Mul"]


def test_a_large_result_stays_computed():
    text = """agraph (float[1,1000] x) => (float[1000,1000] y) <int64[2] s = {1000, 1000}>
        { c = ConstantOfShape(s)
          y = Add(x, c) }"""
    model = apply(FoldConstants(), text, x=np.ones((1, 1000), np.float32))
    assert operators(model) == ["ConstantOfShape", "Add"]


def test_results_are_sized_before_they_are_computed():
    text = """agraph (float[1] x) => (float[n,m] y) <int64[2] s = {1000000000, 1000000000}>
        { c = ConstantOfShape(s)
          y = Add(x, c) }"""
    model = parse(text)
    node = next(node for node in model.graph if node.op_type == "ConstantOfShape")
    assert result_size(node, [np.array([10**9, 10**9])]) == 10**18
    FoldConstants().run(model)
    assert operators(model) == ["ConstantOfShape", "Add"]


def test_quantization_and_random_numbers_are_never_folded():
    text = """agraph (float[2,3] x) => (float[2,3] y, float[2,3] z)
        <int8[2,3] q = {1,2,3,4,5,6}, float s = {0.5}, int8 zero = {0}>
        { w = DequantizeLinear(q, s, zero)
          y = Add(x, w)
          r = RandomNormal <shape = [2,3], seed = 1.0> ()
          z = Add(x, r) }"""
    model = graph.infer_shapes(parse(text))
    FoldConstants().run(model)
    assert {"DequantizeLinear", "RandomNormal"} <= set(operators(model))


@pytest.mark.parametrize(
    "nop",
    [
        "Identity(a)",
        "Dropout(a)",
        "Cast <to = 1> (a)",
        "Transpose <perm = [0, 1]> (a)",
        "Concat <axis = 0> (a)",
        "Reshape(a, shape)",
    ],
)
def test_nodes_that_change_nothing_are_removed(nop):
    text = f"""agraph (float[2,3] x) => (float[2,3] y) <int64[2] shape = {{2, 3}}>
        {{ a = Relu(x)
           b = {nop}
           y = Neg(b) }}"""
    assert operators(apply(RemoveNops(), text, x=X)) == ["Relu", "Neg"]


def test_a_removed_node_hands_its_output_name_on():
    text = """agraph (float[2,3] x) => (float[2,3] y)
        { a = Relu(x)
          y = Identity(a) }"""
    assert operators(apply(RemoveNops(), text, x=X)) == ["Relu"]


@pytest.mark.parametrize(
    "body",
    [
        "y = Identity(x) z = Relu(x)",  # an input cannot be an output under another name
        "y = Identity(w) z = Relu(x)",  # nor an initializer
        "z = Relu(x) y = Identity(z)",  # nor another output
        "a = Cast <to = 7> (x) y = Cast <to = 1> (a) z = Relu(x)",
        "a = Transpose <perm = [1, 0]> (x) y = Transpose <perm = [1, 0]> (a) z = Relu(x)",
    ],
)
def test_nodes_that_matter_stay(body):
    text = f"agraph (float[2,3] x) => (float[2,3] y, float[2,3] z) <float[2,3] w = {{1,2,3,4,5,6}}> {{ {body} }}"
    before = operators(parse(text))
    assert operators(apply(RemoveNops(), text, x=X)) == before


def test_dropout_with_a_used_mask_stays():
    text = """agraph (float[2,3] x) => (float[2,3] y, bool[2,3] mask)
        { a = Relu(x)
          y, mask = Dropout(a) }"""
    assert operators(apply(RemoveNops(), text, x=X)) == ["Relu", "Dropout"]


def test_equal_expressions_are_computed_once():
    text = """agraph (float[2,3] x) => (float[2,3] y)
        { a = Exp(x)
          b = Exp(x)
          c = Neg(x)
          s = Add(a, b)
          y = Add(s, c) }"""
    assert operators(apply(ShareCommonSubexpressions(), text, x=X)).count("Exp") == 1


def test_each_output_keeps_its_own_node():
    text = """agraph (float[2,3] x) => (float[2,3] y, float[2,3] z)
        { y = Relu(x)
          z = Relu(x) }"""
    assert operators(apply(ShareCommonSubexpressions(), text, x=X)) == ["Relu", "Relu"]


def test_attributes_tell_expressions_apart():
    text = """agraph (float[2,3] x) => (float[2,3] y)
        { a = LeakyRelu <alpha = 0.1> (x)
          b = LeakyRelu <alpha = 0.2> (x)
          y = Add(a, b) }"""
    assert operators(apply(ShareCommonSubexpressions(), text, x=X)).count("LeakyRelu") == 2


def test_two_random_nodes_stay_two():
    text = """agraph (float[2,3] x) => (float[2,3] y)
        { a = RandomNormalLike(x)
          b = RandomNormalLike(x)
          y = Sub(a, b) }"""
    model = parse(text)
    assert not ShareCommonSubexpressions().run(model)


def test_dead_nodes_and_weights_go_and_unused_inputs_stay():
    text = """agraph (float[2,3] x, float[2,3] unused) => (float[2,3] y) <float[1] w = {1}>
        { dead = Add(x, w)
          y = Relu(x) }"""
    model = apply(RemoveDeadNodes(), text, x=X, unused=X)
    assert operators(model) == ["Relu"]
    assert not model.graph.initializers


def test_batch_normalization_is_multiplied_into_the_convolution():
    text = """agraph (float[n,2,4,4] x) => (float[n,1,4,4] y)
        <float[1,2,1,1] w = {0.5, -2}, float[1] b = {0.25}, float[1] scale = {3}, float[1] bias = {-1},
         float[1] mean = {0.5}, float[1] var = {4}>
        { c = Conv(x, w, b)
          y = BatchNormalization(c, scale, bias, mean, var) }"""
    x = np.random.default_rng(0).normal(size=(2, 2, 4, 4)).astype(np.float32)
    assert operators(apply(FuseAffine(), text, x=x)) == ["Conv"]
