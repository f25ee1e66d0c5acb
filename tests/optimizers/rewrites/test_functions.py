"""Function bodies in the place of calls: the model's own, and those by which ONNX defines operators."""

from __future__ import annotations

import functools

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from deploykit import graph
from deploykit.optimizers.rewrites.functions import ExpandOperators, InlineFunctions
from deploykit.reference import Reference

# Operators with a body that is used, and how many node-test models of each run in onnxruntime afterwards.
EXPANDED = {
    "AffineGrid": 4, "Attention": 80, "CausalConvWithState": 10, "Celu": 2, "CenterCropPad": 6, "Clip": 9,
    "DepthToSpace": 2, "DynamicQuantizeLinear": 3, "Elu": 3, "Gelu": 4, "GroupNormalization": 2, "HardSigmoid": 3,
    "HardSwish": 1, "LayerNormalization": 19, "LeakyRelu": 3, "LinearAttention": 10, "LogSoftmax": 7,
    "MeanVarianceNormalization": 1, "Mish": 1, "NegativeLogLikelihoodLoss": 18, "PRelu": 2, "RMSNormalization": 19,
    "ReduceL1": 9, "ReduceL2": 9, "ReduceLogSum": 5, "ReduceLogSumExp": 9, "ReduceSumSquare": 9, "Relu": 1,
    "RotaryEmbedding": 8, "Selu": 3, "Softmax": 7, "SoftmaxCrossEntropyLoss": 17, "Softplus": 2, "Softsign": 2,
    "SpaceToDepth": 2, "Swish": 1, "ThresholdedRelu": 3, "BlackmanWindow": 2, "HammingWindow": 2, "HannWindow": 2,
    "GreaterOrEqual": 4, "LessOrEqual": 4, "CastLike": 20,
}  # fmt: skip
# Those with a body that is not used: Range as a Loop, random numbers that would be others. SequenceMap has inputs that
# the reference does not take; SwiGLU's body calls Swish, which onnxruntime has no kernel for: see the tests below.
NOT_SWEPT = {"Range", "Bernoulli", "SequenceMap", "SwiGLU", "Shrink"}


NO_KERNELS = {"bfloat16", "float4_e2m1fn", "int4", "uint4", "int2", "uint2"}


@functools.cache
def node_tests():
    from onnx.backend.test.case.node import collect_testcases

    found: dict[str, list] = {}
    for case in collect_testcases(None):
        if case.model is not None and case.data_sets and len(case.model.graph.node) == 1:
            found.setdefault(case.model.graph.node[0].op_type, []).append(case)
    return found


def _array(value):
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def test_every_operator_with_a_body_is_swept():
    with_body = {
        schema.name
        for schema in onnx.defs.get_all_schemas()
        if schema.domain == "" and (schema.has_function or schema.has_context_dependent_function)
    }
    assert with_body == EXPANDED.keys() | NOT_SWEPT


@pytest.mark.parametrize("op", sorted(EXPANDED))
def test_expanded_operator_gives_the_values_of_its_node_tests(op):
    rewrite, right = ExpandOperators(), 0
    for case in node_tests()[op]:
        model = graph.infer_shapes(graph.name_nodes(ir.from_proto(case.model)))
        node = model.graph[0]
        if not rewrite.applies(node, model):
            continue
        before = graph.interface(model)
        assert rewrite.apply(model, [node])
        assert op not in [left.op_type for left in graph.all_nodes(model)]
        assert graph.interface(model) == before
        names = [value.name for value in case.model.graph.input]
        inputs, outputs = ([_array(value) for value in values] for values in case.data_sets[0])
        # Types that onnxruntime has no kernels for, or that its binding does not take.
        if any(array.dtype.name in NO_KERNELS for array in [*inputs, *outputs]):
            continue
        made = Reference(ir.to_proto(model).SerializeToString()).predict(dict(zip(names, inputs, strict=True)))
        for value, array in zip(case.model.graph.output, outputs, strict=True):
            wanted, got = array, made[value.name]
            assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape), case.name
            half = wanted.dtype.itemsize <= 2
            np.testing.assert_allclose(
                got.astype(np.float64),
                wanted.astype(np.float64),
                rtol=case.rtol,
                atol=2e-2 if half else 1e-5,
                err_msg=case.name,
            )
        right += 1
    assert right >= EXPANDED[op]


@pytest.mark.parametrize("op", sorted({"Range", "Bernoulli"}))
def test_bodies_that_are_no_help_are_not_used(op, never_applies):
    for case in node_tests()[op]:
        never_applies(ExpandOperators(), case.model)


@pytest.mark.parametrize("opset", [11, 13, 17, 18, 21, 23])
def test_body_is_written_for_the_opset_of_the_model(opset, unchanged_values):
    ops = unchanged_values(
        ExpandOperators(),
        f"""<ir_version: 8, opset_import: ["": {opset}]>
        agraph (float[N, 4] x) => (float[N, 4] y, float[N, 4] z) {{
            a = Elu <alpha = 0.5> (x)
            b = HardSigmoid (a)
            y = ThresholdedRelu <alpha = 0.25> (b)
            z = Selu (x)
        }}""",
        {"N": 3},
        {"N": 1},
    )
    assert not {"Elu", "HardSigmoid", "ThresholdedRelu", "Selu", "CastLike"} & set(ops)


def test_layer_normalization_inside_a_branch_and_with_its_optional_outputs(unchanged_values):
    ops = unchanged_values(
        ExpandOperators(),
        """<ir_version: 8, opset_import: ["": 17]>
        agraph (bool c, float[N, 4] x, float[4] s, float[4] b) => (float[N, 4] y, float[N, 1] m) {
            u, m = LayerNormalization (x, s)
            y = If (c) <
                then_branch = g1 () => (float[N, 4] t) { t = LayerNormalization <epsilon = 0.1> (u, s, b) },
                else_branch = g2 () => (float[N, 4] e) { e = Identity (u) }
            >
        }""",
        {"N": 2},
    )
    assert "LayerNormalization" not in ops


FUNCTION = """<ir_version: 9, opset_import: ["": 17, "own": 1]>
agraph (float[N, 4] x) => (float[N, 4] y) {{
    a = own.Outer <slope = 0.3> (x)
    b = own.Outer (a)
    y = own.Optional (b)
}}
<domain: "own", opset_import: ["": {inner}, "own": 1]>
Outer <slope: float = 0.1> (v) => (r) {{
    t = own.Inner <alpha: float = @slope> (v)
    r = Add (t, v)
}}
<domain: "own", opset_import: ["": {inner}]>
Inner <alpha> (v) => (w) {{ w = LeakyRelu <alpha: float = @alpha> (v) }}
<domain: "own", opset_import: ["": {inner}]>
Optional (v, low) => (w) {{ w = Clip (v, low) }}
"""


@pytest.mark.parametrize("inner", [17, 18])
def test_calls_of_functions_of_the_model_are_inlined_with_their_attributes(inner, unchanged_values):
    ops = unchanged_values(InlineFunctions(), FUNCTION.format(inner=inner), {"N": 2})
    assert sorted(ops) == ["Add", "Add", "Clip", "LeakyRelu", "LeakyRelu"]


def test_a_node_inside_a_function_is_reached_by_inlining_what_calls_it():
    model = graph.name_nodes(ir.from_proto(onnx.parser.parse_model(FUNCTION.format(inner=17))))
    inside = next(node for node in graph.all_nodes(model) if node.op_type == "LeakyRelu")
    assert InlineFunctions().applies(inside, model)
    InlineFunctions().apply(model, [inside])
    assert sorted(node.op_type for node in model.graph) == ["Add", "Add", "LeakyRelu", "LeakyRelu", "Optional"]
    assert [function.name for function in model.functions.values()] == ["Optional"]


def test_a_function_of_an_opset_that_means_something_else_stays(never_applies):
    never_applies(
        InlineFunctions(),
        """<ir_version: 9, opset_import: ["": 17, "own": 1]>
        agraph (float[2, 4] x) => (float[2, 4] y) { y = own.F (x) }
        <domain: "own", opset_import: ["": 11]>
        F (v) => (w) { w = Softmax <axis = 0> (v) }
        """,
    )
