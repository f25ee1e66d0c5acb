"""Our partitioner against TensorRT-RTX's own: the parser says into which pieces it would cut a graph."""

import onnx
import onnx_ir as ir
import pytest
from onnx import parser

from deploykit.opsupport.partitions import wiring_of

pytest.importorskip("tensorrt_rtx")

from deploykit.converters.tensorrt_rtx.parser import check_model

HEADER = '<ir_version: 10, opset_import: ["": 20, "my.ops": 1]>\n'
GRAPHS = {
    "a path leaves and comes back": (
        "g (float[2,2] x) => (float[2,2] y) { [a] a = Relu (x) [b] b = my.ops.Odd (a) [c] y = Add (a, b) }"
    ),
    "the same with more behind": """g (float[2,2] x) => (float[2,2] y) {
        [a] a = Relu (x) [b] b = my.ops.Odd (a) [c] c = Add (a, b) [d] y = Abs (c)
    }""",
    "nothing comes back": """g (float[2,2] x) => (float[2,2] y) {
        [b] b = my.ops.Odd (x) [a] a = Relu (x) [c] c = Add (a, b) [d] y = Abs (c)
    }""",
    "two that nothing joins": """g (float[2,2] x, float[2,2] z) => (float[2,2] y, float[2,2] w) {
        [a] y = Relu (x) [b] b = my.ops.Odd (z) [c] w = Abs (b)
    }""",
    "a branch that could go with either side": """g (float[2,2] x) => (float[2,2] y) {
        [a] a = Relu (x) [b] b = my.ops.Odd (a) [e] e = Neg (a) [f] f = Exp (e) [c] y = Add (f, b)
    }""",
    "several cuts": """g (float[2,2] x) => (float[2,2] y) {
        [a] a = Relu (x) [b] b = my.ops.Odd (a) [c] c = Abs (b) [d] d = my.ops.Odd (c) [e] e = Neg (d) [f] y = Exp (e)
    }""",
}


@pytest.mark.parametrize("name", GRAPHS)
def test_as_many_pieces_as_the_engine_would_make(tmp_path, name):
    proto = parser.parse_model(HEADER + GRAPHS[name])
    onnx.save(proto, tmp_path / "model.onnx")
    _, subgraphs = check_model(tmp_path / "model.onnx")
    nodes = list(ir.from_proto(proto).graph)
    taken = {node.name for node in nodes if node.op_type != "Odd"}
    assert {nodes[index].name for _, subgraph in subgraphs for index in subgraph} == taken
    assert wiring_of(ir.from_proto(proto)).partitions(taken) == len(subgraphs)
