import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser

from deploykit import graph
from deploykit.errors import ModelError
from deploykit.graph.extraction import NodeModels, node_model
from deploykit.reference import Reference

MODEL = """<ir_version: 10, opset_import: ["": 20, "f": 1]>
agraph (bool c, float[b,4] x) => (float[b,8] y, float[b,2,2] z, float[b,4] q, float[b,4] r)
    <float[4,8] w = {1,2,3,4,5,6,7,8, 1,2,3,4,5,6,7,8, 1,2,3,4,5,6,7,8, 1,2,3,4,5,6,7,8}>
{
    [choose] y = If (c) <
        then_branch = yes () => (float[b,8] a) { [inner] a = MatMul (x, w) },
        else_branch = no () => (float[b,8] d) { n = Neg (x) d = MatMul (n, w) }
    >
    two = Constant <value_ints = [2, 2]> ()
    rest = Constant <value_ints = [-1]> ()
    [sizes] shape = Concat <axis = 0> (rest, two)
    [fold] z = Reshape (x, shape)
    [call] q = f.twice (x)
    low = Constant <value_float = -1.0> ()
    [clip] r = Clip (x, low, )
}
<domain: "f", opset_import: ["": 20]>
twice (a) => (b) { [adder] t = Add (a, a)  b = Relu (t) }
"""


def model_of(text):
    return ir.from_proto(parser.parse_model(text))


def exposed(model):
    """The model with every value of its main graph among the outputs."""
    copy = graph.infer_shapes(model.clone())
    known = set(copy.graph.outputs)
    for node in copy.graph:
        copy.graph.outputs.extend(value for value in node.outputs if value.name and value not in known)
    return copy


def run(model, feeds, tmp_path, name):
    graph.save(model, tmp_path / name)
    return Reference(tmp_path / name).predict(feeds)


def expect_same_results(model, feeds, tmp_path):
    """Each node alone, fed with what it gets in the model, gives what it gives there."""
    whole = {**feeds, **run(exposed(model), feeds, tmp_path, "whole.onnx")}
    nodes = NodeModels(model)
    compared = 0
    for node in graph.name_nodes(model.clone()).graph:
        alone = nodes.take(node.name)
        onnx.checker.check_model(ir.to_proto(alone))
        assert len(list(alone.graph)) == 1
        wanted = {value.name: whole[value.name] for value in alone.graph.inputs}
        for name, value in run(alone, wanted, tmp_path, "alone.onnx").items():
            np.testing.assert_array_equal(value, whole[name])
            compared += 1
    return compared


def test_each_node_alone_computes_what_it_does_in_the_model(tmp_path):
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    for c in (True, False):
        assert expect_same_results(model_of(MODEL), {"c": np.array(c), "x": x}, tmp_path) == 8


def test_nodes_of_a_published_model_alone(shared_model, tmp_path):
    model = graph.load(shared_model("digits/digits_cnn.onnx"))
    spec = graph.interface(model)[0][0]
    shape = [dim if isinstance(dim, int) else 2 for dim in spec.shape]
    x = np.random.default_rng(0).standard_normal(shape).astype(spec.dtype)
    assert expect_same_results(model, {spec.name: x}, tmp_path) >= len(list(model.graph))


def test_types_shapes_and_symbols_are_those_of_the_model():
    inputs, outputs = graph.interface(NodeModels(model_of(MODEL)).take("fold"))
    assert [(spec.name, spec.dtype, spec.shape) for spec in inputs] == [("x", "float32", ("b", 4))]
    assert outputs[0].shape == ("b", 2, 2)


def test_dims_fix_symbols_and_what_follows_from_them():
    inputs, outputs = graph.interface(NodeModels(model_of(MODEL), dims={"b": 3}).take("choose"))
    assert [spec.shape for spec in inputs] == [(), (3, 4)]
    assert outputs[0].shape == (3, 8)


def test_constants_are_initializers_also_those_that_are_computed():
    nodes = NodeModels(model_of(MODEL))
    constant = nodes.take("fold").graph.initializers["shape"].const_value
    assert constant.numpy().tolist() == [-1, 2, 2]
    low = nodes.take("clip").graph.initializers["low"].const_value.numpy()
    assert (low.dtype, low.shape, float(low)) == (np.float32, (), -1.0)


def test_what_a_body_takes_from_outside_goes_along():
    alone = NodeModels(model_of(MODEL)).take("choose")
    assert [value.name for value in alone.graph.inputs] == ["c", "x"]
    assert list(alone.graph.initializers) == ["w"]


def test_a_function_goes_along_and_a_node_in_it_gets_the_types_of_the_first_call():
    nodes = NodeModels(model_of(MODEL))
    assert [key[:2] for key in nodes.take("call").functions] == [("f", "twice")]
    assert not nodes.take("fold").functions
    (spec,), _ = graph.interface(nodes.take("adder"))
    assert (spec.name, spec.dtype, spec.shape) == ("x", "float32", ("b", 4))


def test_the_model_is_left_as_it_is():
    model = model_of(MODEL)
    before = ir.to_proto(model).SerializeToString()
    NodeModels(model, dims={"b": 3}).take("fold")
    assert ir.to_proto(model).SerializeToString() == before


def test_custom_domains_keep_their_opset_import_and_attributes():
    text = """<ir_version: 10, opset_import: ["": 20, "my.ops": 3]>
    agraph (float[2,3] x) => (float[2,3] y) { [odd] y = my.ops.Odd <gain = 2.5, words = ["a", "b"]> (x) }"""
    alone = NodeModels(model_of(text)).take("odd")
    (node,) = alone.graph
    assert (node.domain, alone.opset_imports["my.ops"]) == ("my.ops", 3)
    assert node.attributes["gain"].as_float() == 2.5


def test_a_node_behind_one_without_types_cannot_stand_alone():
    text = """<ir_version: 10, opset_import: ["": 20, "my.ops": 3]>
    agraph (float[2,3] x) => (float[2,3] y) { [odd] t = my.ops.Odd (x) [after] y = Relu (t) }"""
    nodes = NodeModels(model_of(text))
    assert nodes.take("odd")
    with pytest.raises(ModelError, match=r"'after' \(Relu\) cannot stand alone: the type of its input 't'") as caught:
        nodes.take("after")
    assert (caught.value.code, caught.value.node) == ("DK227", "after")
    with pytest.raises(ModelError, match="no node 'nowhere'"):
        nodes.take("nowhere")


@pytest.mark.parametrize("shape", ["{1000000, 1000000}", "{300, 300}"])
def test_a_computed_constant_that_is_large_stays_an_input(shape):
    text = f"""<ir_version: 10, opset_import: ["": 20]>
    agraph (float[1] x) => (float[n,m] y) <int64[2] s = {shape}> {{ t = ConstantOfShape (s) [add] y = Add (t, x) }}"""
    alone = NodeModels(model_of(text)).take("add")
    assert [value.name for value in alone.graph.inputs] == ["t", "x"]


def test_random_values_are_not_constants():
    text = """<ir_version: 10, opset_import: ["": 20]>
    agraph (float[2] x) => (float[2] y) <float[2] p = {1, 1}> {
        r = RandomNormalLike (p) [add] y = Add (r, x)
    }"""
    assert [value.name for value in NodeModels(model_of(text)).take("add").graph.inputs] == ["r", "x"]


def test_sequences_keep_their_type():
    text = """<ir_version: 10, opset_import: ["": 20]>
    agraph (float[6,2] x) => (float[k,2] y) {
        s = SplitToSequence <axis = 0> (x) [join] y = ConcatFromSequence <axis = 0> (s)
    }"""
    alone = NodeModels(model_of(text)).take("join")
    onnx.checker.check_model(ir.to_proto(alone))
    assert isinstance(alone.graph.inputs[0].type, ir.SequenceType)


def test_large_constants_are_shared_and_not_copied(tmp_path):
    model = model_of(MODEL)
    graph.infer_shapes(model)
    node = next(node for node in model.graph.all_nodes() if node.name == "inner")
    alone = node_model(model, node)
    assert alone.graph.initializers["w"].const_value is model.graph.initializers["w"].const_value


@pytest.mark.parametrize(
    ("shape", "attributes", "expected"),
    [
        ("2,3,4", "", [2, 3, 4]),
        ("n,3,4", "<start = 1>", [3, 4]),
        ("n,3,4", "<start = -2, end = -1>", [3]),
        ("n,3,4", "", None),
    ],
)
def test_a_shape_that_is_known_is_a_constant(shape, attributes, expected):
    text = f"""<ir_version: 10, opset_import: ["": 20]>
    agraph (float[{shape}] x) => (int64[k] y) <int64[1] more = {{7}}> {{
        s = Shape {attributes} (x) t = Concat <axis = 0> (s, more) [neg] y = Neg (t)
    }}"""
    alone = NodeModels(model_of(text)).take("neg")
    if expected is None:
        assert [value.name for value in alone.graph.inputs] == ["t"]
    else:
        assert alone.graph.initializers["t"].const_value.numpy().tolist() == [*expected, 7]


def test_what_takes_long_is_not_computed_on_the_way():
    text = """<ir_version: 10, opset_import: ["": 20]>
    agraph (float[1] x) => (float[1] y) <float[2] a = {1, 2}> {
        e = Einsum <equation = "a,b,c->"> (a, a, a) [add] y = Add (e, x)
    }"""
    assert [value.name for value in NodeModels(model_of(text)).take("add").graph.inputs] == ["e", "x"]
