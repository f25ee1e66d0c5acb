"""What a model looks like from outside."""

import dataclasses

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from deploykit import graph
from deploykit.artifact import Artifact, write_manifest
from deploykit.graph.signature import constant_of

HEAD = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>\n'


def parsed(text):
    return ir.from_proto(onnx.parser.parse_model(HEAD + text))


def test_interface_leaves_out_initializers_that_are_inputs_too():
    inputs, outputs = graph.interface(
        parsed("g (float[n,2] x, float[2] w = {1,2}) => (float[n,2] y) { y = Add(x, w) }")
    )
    assert [spec.describe() for spec in inputs] == ["float32 [n, 2]"]
    assert [spec.name for spec in outputs] == ["y"]


@pytest.mark.parametrize(
    ("declared", "described"),
    [
        ("float[0,2]", "float32 [0, 2]"),
        ("float[?,n,?]", "float32 [x_dim0, n, x_dim2]"),
        ("float[]", "float32 of unknown rank"),
        ("int64", "int64 []"),
        ("bool[3]", "bool [3]"),
        ("bfloat16[3]", "bfloat16 [3]"),
        ("float16[3]", "float16 [3]"),
        ("string[3]", "string [3]"),
        ("float8e4m3fn[3]", "float8_e4m3fn [3]"),
        ("seq(float[3])", "sequence(float32) of unknown rank"),
        ("optional(float[3])", "optional(float32) of unknown rank"),
    ],
)
def test_types_and_shapes(declared, described):
    inputs, _ = graph.interface(parsed(f"g ({declared} x) => ({declared} y) {{ y = Identity(x) }}"))
    assert inputs[0].describe() == described


def test_negative_dimensions_are_unknown():
    model = onnx.parser.parse_model(HEAD + "g (float[2] x) => (float[2] y) { y = Neg(x) }")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    inputs, _ = graph.interface(ir.from_proto(model))
    assert inputs[0].shape == ("x_dim0",)


PRECISIONS = {
    "fp32": "g (float[2,2] x) => (float[2,2] y) <float[2,2] w = {1,2,3,4}> { y = MatMul(x, w) }",
    "fp16": "g (float16[2,2] x) => (float16[2,2] y) <float16[2,2] w = {1,2,3,4}> { y = MatMul(x, w) }",
    "bf16": "g (bfloat16[2,2] x) => (bfloat16[2,2] y) { y = MatMul(x, x) }",
    "fp64": "g (double[2,2] x) => (double[2,2] y) { y = MatMul(x, x) }",
    "mixed": """g (float[2,2] x) => (float[2,2] y) <float[2,2] w = {1,2,3,4}, float16[2,2] h = {1,2,3,4}> {
        a = MatMul(x, w)  b = Cast <to=10> (a)  c = MatMul(b, h)  y = Cast <to=1> (c) }""",
    "int8": """g (float[2,2] x) => (float[2,2] y) <float s = {1}, int8 z = {0}, int8[2,2] w = {1,2,3,4}> {
        q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)
        v = DequantizeLinear(w, s, z)  y = MatMul(d, v) }""",
    "int8-weights": """g (float[2,2] x) => (float[2,2] y) <float s = {1}, int8[2,2] w = {1,2,3,4}> {
        v = DequantizeLinear(w, s)  y = MatMul(x, v) }""",
    "int8-dynamic": """g (float[2,2] x) => (float[2,2] y) <int8[2,2] w = {1,2,3,4}> {
        q, s, z = DynamicQuantizeLinear(x)  i = MatMulInteger(q, w, z)  c = Cast <to=1> (i)  y = Mul(c, s) }""",
    "int4-weights": """g (float[2,2] x) => (float[2,2] y) <float s = {1}, int4[2,2] w = {1,2,3,4}> {
        v = DequantizeLinear(w, s)  y = MatMul(x, v) }""",
}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_precision_is_told_from_the_graph(precision):
    assert graph.precision_of(parsed(PRECISIONS[precision])) == precision


def test_describe_takes_the_origin_from_a_manifest_of_the_same_bytes_only(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(onnx.parser.parse_model(HEAD + PRECISIONS["fp32"]).SerializeToString())
    plain = graph.describe(path)
    assert (plain.precision, plain.opset, plain.files, plain.stage) == ("fp32", 21, ("m.onnx",), "")
    made = Artifact.of(path, "onnx", precision="mixed", stage="quantize", parent_sha256="ab", options={"a": 1})
    write_manifest(made)
    claimed = graph.describe(path)
    assert (claimed.precision, claimed.stage, claimed.parent_sha256) == ("mixed", "quantize", "ab")
    assert claimed.sha256 == plain.sha256
    write_manifest(dataclasses.replace(made, sha256="0" * 64))
    assert graph.describe(path) == plain


def test_opset_of_models_without_standard_operators():
    model = ir.from_proto(
        onnx.parser.parse_model('<ir_version: 9, opset_import: ["own" : 1]> g (float[1] x) => (float[1] x) { }')
    )
    assert graph.opset(model) == 0


def test_name_nodes_is_deterministic_and_unique():
    text = """g (float[2] x, bool c) => (float[2] y) {
        [Relu_1] a = Relu(x)  b = Relu(a)  [same] d = Neg(b)  [same] e = Neg(d)
        y = If (c) <then_branch = t () => (float[2] p) { p = Relu(e) },
                    else_branch = f () => (float[2] q) { q = Neg(e) }>
    }"""
    names = []
    for _ in range(2):
        model = graph.name_nodes(parsed(text))
        names.append([node.name for node in graph.all_nodes(model)])
        assert [node.name for node in graph.all_nodes(graph.name_nodes(model))] == names[-1]
    assert names[0] == names[1]
    assert len(set(names[0])) == len(names[0]) == 7
    assert names[0][:4] == ["Relu_1", "Relu_2", "same", "same_1"]


def test_shapes_are_inferred_past_custom_operators():
    model = graph.infer_shapes(
        parsed("g (float[n,3,4] x) => (float[?,?] y) { a = Flatten(x)  b = com.microsoft.Nothing(a)  y = Relu(a) }")
    )
    shapes = {value.name: value.shape for node in model.graph for value in node.outputs}
    assert [str(dim) for dim in shapes["a"]] == ["n", "12"]
    assert shapes["b"] is None
    assert shapes["y"][1] == 12


def test_shape_inference_keeps_what_is_declared():
    text = "g (float[batch,2] x) => (float[samples,2] y) { y = Relu(x) }"
    assert str(graph.infer_shapes(parsed(text)).graph.outputs[0].shape[0]) == "samples"


def test_shape_inference_leaves_weights_and_their_order():
    model = onnx.parser.parse_model(
        HEAD + "g (float[2,64] x) => (float[2,64] y) { h = MatMul(x, b)  y = MatMul(h, a) }"
    )
    for name in ("b", "a"):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((64, 64), np.float32), name))
    loaded = ir.from_proto(model)
    tensors = [value.const_value for value in loaded.graph.initializers.values()]
    graph.infer_shapes(loaded)
    assert list(loaded.graph.initializers) == ["b", "a"]
    assert all(a is b.const_value for a, b in zip(tensors, loaded.graph.initializers.values(), strict=True))


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [
        ("value_int: int = 3", np.int64(3)),
        ("value_ints: ints = [1, 2]", np.int64([1, 2])),
        ("value_float: float = 0.5", np.float32(0.5)),
        ("value_floats: floats = [0.5, 2.0]", np.float32([0.5, 2])),
        ('value_string: string = "a"', None),
    ],
)
def test_short_forms_of_a_constant_are_constants(attribute, expected):
    text = f'<ir_version: 8, opset_import: ["" : 17]> g () => (int64 c) {{ c = Constant <{attribute}> () }}'
    model = ir.from_proto(onnx.parser.parse_model(text))
    found = constant_of(model.graph[0].outputs[0])
    if expected is None:
        assert found is None
        return
    assert found.numpy().dtype == expected.dtype
    np.testing.assert_array_equal(found.numpy(), expected)
