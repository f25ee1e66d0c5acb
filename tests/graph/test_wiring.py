"""Graphs whose nodes do not hang together are refused with the node and the value that is wrong."""

import time

import onnx
import onnx.parser
import pytest

from deploykit import graph
from deploykit.errors import ModelError

HEAD = '<ir_version: 10, opset_import: ["" : 17, "own" : 1]>\n'
LOOPS = "g (float[2] x) => (float[2] y) { [first] a = Add(x, b)  [second] b = Relu(a)  [third] y = Neg(b) }"


def refused(tmp_path, model):
    path = tmp_path / "m.onnx"
    path.write_bytes((onnx.parser.parse_model(HEAD + model) if isinstance(model, str) else model).SerializeToString())
    with pytest.raises(ModelError) as caught:
        graph.check_file(path)
    assert "m.onnx" in caught.value.message
    return caught.value


def test_a_cycle_is_walked(tmp_path):
    error = refused(tmp_path, LOOPS)
    assert error.code == "DK117"
    assert "Add node 'first' -> Relu node 'second' -> Add node 'first'" in error.message
    assert "third" not in error.message


def test_a_node_that_feeds_itself(tmp_path):
    error = refused(tmp_path, "g (float[2] x) => (float[2] y) { [selfish] y = Add(x, y) }")
    assert "cycle" in error.message
    assert error.node == "selfish"


def test_a_cycle_through_a_subgraph(tmp_path):
    error = refused(
        tmp_path,
        """g (float[2] x, bool c) => (float[2] y) {
            [outer] a = If (c) <then_branch = t () => (float[2] p) { p = Neg(y) },
                                else_branch = e () => (float[2] q) { q = Neg(x) }>
            [back] y = Relu(a)
        }""",
    )
    assert "cycle" in error.message
    assert "'outer'" in error.message


@pytest.mark.parametrize(
    ("text", "words", "node", "tensor"),
    [
        ("g (float[2] x) => (float[2] y) { [n] y = Add(x, gone) }", "nothing makes 'gone'", "n", "gone"),
        ("g (float[2] x) => (float[2] y) { [n] z = Neg(x) }", "nothing makes 'y', an output", None, "y"),
        ("g (float[2] x) => (float[2] y) { y = Neg(x) [n] y = Abs(x) }", "'y'", "n", "y"),
        ("g (float[2] x) => (float[2] x) { [n] x = Neg(x) }", "an input or initializer too", "n", "x"),
        ("g (float[2] x, float[2] x) => (float[2] y) { y = Neg(x) }", "two inputs called 'x'", None, "x"),
        (
            """g (float[2] x, bool c) => (float[2] y) {
                y = If (c) <then_branch = t () => (float[2] p) { [n] p = Neg(gone) },
                            else_branch = e () => (float[2] q) { q = Neg(x) }>
            }""",
            "nothing makes 'gone'",
            "n",
            "gone",
        ),
        ("g (float[2] x) => (float[2] y) { [n] y = stranger.Op(x) }", "'stranger'", "n", None),
    ],
)
def test_broken_wiring_is_named(tmp_path, text, words, node, tensor):
    error = refused(tmp_path, text)
    assert words in error.message
    assert error.code == ("DK118" if "stranger" in text else "DK117")
    assert (error.node, error.tensor) == (node, tensor)


def test_two_initializers_of_one_name(tmp_path):
    model = onnx.parser.parse_model(HEAD + "g (float[1] x) => (float[1] y) <float[1] w = {1}> { y = Add(x, w) }")
    model.graph.initializer.append(model.graph.initializer[0])
    assert "two initializers called 'w'" in refused(tmp_path, model).message


def test_missing_opset_import(tmp_path):
    model = onnx.parser.parse_model(HEAD + "g (float[1] x) => (float[1] y) { [n] y = Neg(x) }")
    del model.opset_import[:]
    error = refused(tmp_path, model)
    assert error.code == "DK118"
    assert "Neg node 'n'" in error.message
    assert "'ai.onnx'" in error.message


def test_two_versions_of_one_domain(tmp_path):
    model = onnx.parser.parse_model(HEAD + "g (float[1] x) => (float[1] y) { y = Neg(x) }")
    model.opset_import.append(onnx.helper.make_opsetid("ai.onnx", 11))
    assert refused(tmp_path, model).code == "DK118"


@pytest.mark.parametrize("version", [0, -3, 2**31, 2**62])
def test_an_opset_that_is_no_version(tmp_path, version):
    model = onnx.parser.parse_model(HEAD + "g (float[1] x) => (float[1] y) { y = Neg(x) }")
    model.opset_import[0].version = version
    error = refused(tmp_path, model)
    assert error.code == "DK112"
    assert str(version) in error.message


@pytest.mark.parametrize("operator", ["", "Neg\n::error::", "N\x1b[31meg"])
def test_an_operator_that_would_write_past_its_line(tmp_path, operator):
    model = onnx.parser.parse_model(HEAD + "g (float[1] x) => (float[1] y) { [n] y = Neg(x) }")
    model.graph.node[0].op_type = operator
    error = refused(tmp_path, model)
    assert error.code == "DK112"
    assert repr(operator) in error.message


def test_an_operator_that_is_no_text(tmp_path):
    model = onnx.parser.parse_model(HEAD + "g (float[1] x) => (float[1] y) { [n] y = Neg(x) }")
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString().replace(b"Neg", b"N\xffg"))
    with pytest.raises(ModelError) as caught:
        graph.check_file(path)
    assert caught.value.code == "DK112"


def test_a_dimension_that_would_write_past_its_line(tmp_path):
    model = onnx.parser.parse_model(HEAD + "g (float[n] x) => (float[n] y) { y = Neg(x) }")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n\n::error::"
    error = refused(tmp_path, model)
    assert (error.code, error.tensor) == ("DK112", "x")


@pytest.mark.parametrize("symbol", ["pär t\u3000", "batch*seq + 1"])
def test_names_of_dimensions_are_free_otherwise(tmp_path, symbol):
    model = onnx.parser.parse_model(HEAD + "g (float[n] x) => (float[n] y) { y = Neg(x) }")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = symbol
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    graph.check_file(tmp_path / "m.onnx")


def test_functions_that_call_themselves(tmp_path):
    error = refused(
        tmp_path,
        """g (float[1] x) => (float[1] y) { y = own.f(x) }
        <domain: "own", opset_import: ["" : 17, "own" : 1]> f (a) => (b) { b = own.h(a) }
        <domain: "own", opset_import: ["" : 17, "own" : 1]> h (a) => (b) { b = own.f(a) }""",
    )
    assert "f -> h -> f" in error.message


def test_functions_that_multiply_without_bound(tmp_path):
    text = "g (float[1] x) => (float[1] y) { y = own.f0(x) }"
    for level in range(12):
        call = f"own.f{level + 1}" if level < 11 else "Neg"
        body = " ".join(f"v{i + 1} = {call}(v{i})" for i in range(10))
        text += f'<domain: "own", opset_import: ["" : 17, "own" : 1]> f{level} (v0) => (v10) {{ {body} }}\n'
    started = time.monotonic()
    assert "expand to" in refused(tmp_path, text).message
    assert time.monotonic() - started < 2


@pytest.mark.parametrize(
    "text",
    [
        # subgraphs see outer values, made before or given; optional inputs are empty names
        """g (float[2] x, bool c) => (float[2] y) <float[2] w = {1, 2}> {
            h = Neg(x)
            y = If (c) <then_branch = t () => (float[2] p) { p = Add(h, w) }, else_branch = e () => (float[2] h) { }>
        }""",
        "g (float[2] x) => (float[2] y) { y = Clip(x, , ) }",
        "g (float[2] x) => (float[2] x) { }",
        """g (float[1] x) => (float[1] y) { y = own.f(x) }
        <domain: "own", opset_import: ["" : 17]> f (a) => (b) { b = Neg(a) }""",
    ],
)
def test_sound_graphs_pass(tmp_path, text):
    path = tmp_path / "m.onnx"
    path.write_bytes(onnx.parser.parse_model(HEAD + text).SerializeToString())
    graph.check_file(path)
    graph.load(path)
