import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser

from deploykit import graph
from deploykit.opsupport.facts import facts_of

BODY = """(bool c, float[n,4] x) => (y) <float[4,2] w = {1,2,3,4,5,6,7,8}>
    { y = If (c) <then_branch = yes () => (a) { a = MatMul (x, w) }, else_branch = no () => (b) { b = Relu (x) }> }"""


def test_nodes_come_in_the_order_of_the_graph_with_their_bodies(nodes_of):
    facts = nodes_of(BODY)
    assert [node.op for node in facts] == ["If", "MatMul", "Relu"]
    weights = facts[1].inputs[1]
    assert (weights.constant, weights.shape, weights.dtype) == (True, (4, 2), "float32")
    assert facts[1].inputs[0].shape == ("n", 4)


def test_key_opset_and_version(last_of):
    node = last_of("(float[2] x) => (y) { y = com.microsoft.Gelu (x) }", 17, ', "com.microsoft": 1')
    assert (node.key, node.opset, node.since) == ("com.microsoft:Gelu", 1, None)
    node = last_of("(float[2] x) => (y) { y = Relu (x) }", 17)
    assert (node.key, node.opset, node.since) == ("ai.onnx:Relu", 17, 14)


@pytest.mark.parametrize(
    ("attribute", "dtype", "value"),
    [
        ("value_int = 3", "int64", 3),
        ("value_ints = [1, 2]", "int64", [1, 2]),
        ("value_float = 0.5", "float32", 0.5),
        ("value_floats = [0.5, 1.0]", "float32", [0.5, 1.0]),
        ('value_string = "a"', "string", b"a"),
        ('value_strings = ["a", "b"]', "string", [b"a", b"b"]),
        ("value = float[2] {1, 2}", "float32", [1, 2]),
    ],
)
def test_every_form_of_constant_has_its_value(nodes_of, attribute, dtype, value):
    used = nodes_of(f"(float[2] x) => (y) {{ c = Constant <{attribute}> () y = Identity (c) }}")[1].inputs[0]
    assert used.constant
    assert used.foldable
    assert used.dtype == dtype
    assert used.shape == np.shape(value)
    assert used.value.tolist() == value


def test_foldable_is_what_follows_from_constants_and_fixed_shapes(nodes_of):
    facts = nodes_of(
        """(float[2,3] x, float[n,3] d) => (y, z, r) <int64[1] c = {1}>
        { a = Neg (c) s = Shape (x) g = Gather (s, a) t = Shape (d) y = Reshape (x, g) z = Reshape (d, t)
          u = RandomUniform <shape = [2]> () r = Neg (u) }"""
    )
    by_output = {node.outputs[0].name: node for node in facts}
    assert by_output["y"].inputs[1].foldable
    assert not by_output["y"].inputs[1].constant
    assert by_output["y"].inputs[1].value is None
    assert not by_output["z"].inputs[1].foldable
    assert not by_output["r"].inputs[0].foldable


def test_unused_outputs_and_producers(last_of):
    node = last_of("(float[2] x) => (y) { h = Relu (x) y, m = Dropout (h) }")
    assert [output.used for output in node.outputs] == [True, False]
    assert node.inputs[0].producer == "Relu"


def test_omitted_inputs_and_outputs_are_none(last_of):
    node = last_of("(float[3] x) => (y) <float top = {6}> { y = Clip (x, , top) }")
    assert node.inputs[1] is None
    assert node.inputs[2].value == 6


def test_dimensions_without_a_size_have_no_name(last_of):
    node = last_of("(float[?,3] x, float[3] c) => (y) { i = NonZero (x) y = Relu (x) }")
    assert node.inputs[0].shape == (None, 3)
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            [onnx.helper.make_node("Relu", ["x"], ["y"])],
            "g",
            [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [-1, 3])],
            [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        )
    )
    assert facts_of(ir.from_proto(model))[0].inputs[0].shape == (None, 3)


def test_a_name_of_the_interface_is_a_name_whatever_it_looks_like(last_of):
    node = last_of("(float[unk__7,m] x) => (y) { y = Relu (x) }")
    assert node.outputs[0].shape == ("unk__7", "m")


def test_dimensions_take_the_sizes_that_are_given(last_of):
    node = last_of("(float[n,m] x) => (y) { y = Relu (x) }", dims={"n": 4})
    assert node.inputs[0].shape == (4, "m")


def test_large_constants_have_no_value():
    text = '<ir_version: 10, opset_import: ["": 20]> g (float[70000] x) => (y) { y = Relu (x) }'
    model = ir.from_proto(parser.parse_model(text))
    model.graph.inputs[0].const_value = ir.tensor(np.zeros(70_000, np.float32))
    node = facts_of(model)[0]
    assert node.inputs[0].constant
    assert node.inputs[0].value is None


def test_facts_of_real_models_agree_with_the_graph(shared_model):
    model = graph.load(shared_model("silero_vad/silero_vad_op18_ifless.onnx"))
    facts = facts_of(model)
    nodes = list(graph.all_nodes(model))
    assert [node.op_type for node in nodes] == [node.op for node in facts]
    assert all(node.since is not None for node in facts)


def test_what_follows_from_shapes_is_constant_once_they_are_fixed(nodes_of):
    facts = nodes_of(
        """(float[n,3] x, int64[2] given) => (y, z) <int64[1] at = {0}, int64[1] three = {3}>
        { s = Shape (x) g = Gather (s, at) shape = Concat <axis = 0> (g, three)
          y = Reshape (x, shape) z = Reshape (x, given) }"""
    )
    by_output = {node.outputs[0].name: node.inputs[-1] for node in facts}
    assert (by_output["y"].foldable, by_output["y"].sized) == (False, True)
    assert (by_output["z"].foldable, by_output["z"].sized) == (False, False)


def test_what_a_custom_operator_gives_is_not_foldable(nodes_of):
    facts = nodes_of("(float[1] x) => (y) <float[1] c = {1}> { a = my.Op (c) y = Add (x, a) }", imports=', "my": 1')
    assert not facts[1].inputs[1].foldable


def test_a_reshape_to_computed_sizes_has_the_rank_of_their_number_and_so_has_what_follows(nodes_of):
    facts = nodes_of(
        """(float[n,m] x) => (r) <int64[1] at = {1}>
        { i = NonZero (x) a = Shape (i) g = Gather (a, at) sizes = Concat <axis = 0> (g, g, g)
          t = Reshape (x, sizes) y = Relu (t) b = Shape (y) z = Reshape (y, b) r = Relu (z) }"""
    )
    ranks = {node.outputs[0].name: node.outputs[0].rank for node in facts}
    assert (ranks["t"], ranks["y"], ranks["z"], ranks["r"]) == (3, 3, 3, 3)
    assert facts[-1].outputs[0].shape == (None, None, None)
