"""The order and the numbers that an exporter happened to give are gone, the graph is the same."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from deploykit.exporters.canonical import make_canonical


def canonical(body: str, weights: str) -> onnx.ModelProto:
    text = f'<ir_version: 8, opset_import: ["": 17]> agraph (float[2] x) => (float[2] y) <{weights}> {{ {body} }}'
    model = ir.from_proto(onnx.parser.parse_model(text))
    make_canonical(model)
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    return proto


def test_order_numbers_and_dead_nodes_do_not_matter():
    first = canonical(
        "a__3 = Add(x, w__1) b__4 = Mul(x, w__2) y = Sub(a__3, b__4)", "float[1] w__1 = {1}, float[1] w__2 = {2}"
    )
    second = canonical(
        "b__7 = Mul(x, w__9) c = Relu(x) a__8 = Add(x, w__6) y = Sub(a__8, b__7)",
        "float[1] w__9 = {2}, float[1] w__6 = {1}",
    )
    assert first.SerializeToString(deterministic=True) == second.SerializeToString(deterministic=True)
    assert [node.op_type for node in first.graph.node] == ["Add", "Mul", "Sub"]
    assert [weight.name for weight in first.graph.initializer] == ["w", "w_1"]


def test_what_a_branch_reads_stays_before_it():
    body = """k__2 = ReduceSum <keepdims=0> (x) c = Greater(k__2, zero) t__5 = Add(x, x)
        y = If (c) <then_branch = one () => (float[2] p) { p = Relu(t__5) },
                    else_branch = two () => (float[2] q) { q = Neg(t__5) }>"""
    made = canonical(body, "float zero = {0}")
    assert [node.op_type for node in made.graph.node] == ["ReduceSum", "Greater", "Add", "If"]
    branch = made.graph.node[-1].attribute[0].g.node[0]
    assert list(branch.input) == [made.graph.node[2].output[0]] == ["t"]
