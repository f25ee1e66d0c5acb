"""float64 inputs and outputs become float32; what computes inside keeps its type."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from deploykit import graph
from deploykit.optimizers.rewrites.interface_types import FloatInterface
from deploykit.reference import Reference

HEADER = '<ir_version: 8, opset_import: ["": 17]>\n'


def rewritten(text: str) -> tuple[list[str], onnx.ModelProto, list]:
    """Operators, model and changes after the rewrite of every node that it applies to."""
    model = graph.infer_shapes(graph.name_nodes(ir.from_proto(onnx.parser.parse_model(HEADER + text))))
    rewrite = FloatInterface()
    changes = rewrite.apply(model, [node for node in graph.all_nodes(model) if rewrite.applies(node, model)])
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    return [node.op_type for node in proto.graph.node], proto, changes


def outputs(proto: onnx.ModelProto, **feeds: np.ndarray) -> dict[str, np.ndarray]:
    reference = Reference(proto.SerializeToString())
    try:
        return reference.predict(feeds)
    finally:
        reference.close()


def test_casts_stand_where_values_inside_stay_float64() -> None:
    text = "agraph (double[n,2] x, float[2] z) => (double[n,2] y, float[2] u) { a = Exp (x) y = Neg (a) u = Neg (z) }"
    ops, proto, changes = rewritten(text)
    assert ops == ["Cast", "Exp", "Neg", "Neg", "Cast"]
    assert [change.text for change in changes] == [
        "input 'x' is float32 in place of float64",
        "output 'y' is float32 in place of float64",
    ]
    x = np.float32([[0.5, 1.5]])
    found = outputs(proto, x=x, z=np.float32([1, 2]))
    assert found["y"].dtype == np.float32
    np.testing.assert_allclose(found["y"], -np.exp(x.astype(np.float64)), rtol=1e-6)


def test_casts_that_were_there_go() -> None:
    text = """agraph (double[n,2] x) => (double[n,2] y)
        { a = Cast <to = 1> (x) b = Exp (a) y = Cast <to = 11> (b) }"""
    ops, proto, _ = rewritten(text)
    assert ops == ["Exp"]
    np.testing.assert_allclose(outputs(proto, x=np.float32([[1, 2]]))["y"], np.exp([[1, 2]]), rtol=1e-6)
    assert [value.name for value in (*proto.graph.input, *proto.graph.output)] == ["x", "y"]


def test_a_cast_whose_result_is_read_elsewhere_stays() -> None:
    text = """agraph (double[2] x) => (double[2] y, double[2] z)
        { a = Cast <to = 1> (x) b = Exp (a) y = Cast <to = 11> (b) z = Neg (y) }"""
    ops, proto, _ = rewritten(text)
    assert ops.count("Cast") == 3
    x = np.float32([1, 2])
    np.testing.assert_allclose(outputs(proto, x=x)["z"], -np.exp(x), rtol=1e-6)


def test_readers_in_bodies_get_float64_again() -> None:
    text = """agraph (double[2] x, bool c) => (float[2] y) { y = If (c) <
        then_branch = t () => (float[2] a) { e = Exp (x) a = Cast <to = 1> (e) },
        else_branch = f () => (float[2] b) { b = Cast <to = 1> (x) }> }"""
    ops, proto, _ = rewritten(text)
    assert ops == ["Cast", "If"]
    for c in (True, False):
        x = np.float32([1, 2])
        expected = np.exp(x) if c else x
        np.testing.assert_allclose(outputs(proto, x=x, c=np.array(c))["y"], expected, rtol=1e-6)


@pytest.mark.parametrize(
    "text",
    [
        "agraph (float[2] x) => (float[2] y) { y = Neg (x) }",
        "agraph (float[2] x) => (float[2] y) { a = Cast <to = 11> (x) b = Neg (a) y = Cast <to = 1> (b) }",
        "agraph (double[2] x) => (double[2] x) { }",
    ],
)
def test_other_interfaces_are_left_alone(text: str) -> None:
    before = onnx.parser.parse_model(HEADER + text)
    ops, _, changes = rewritten(text)
    assert changes == []
    assert ops == [node.op_type for node in before.graph.node]
