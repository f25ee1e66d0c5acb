"""Verdicts of Core ML about nodes whose bodies read what is refused outside."""

from __future__ import annotations

import onnx
import pytest

import deploykit
from deploykit.isolation import workers


@pytest.fixture(scope="module", autouse=True)
def pool():
    """Core ML's process, shared by the whole module."""
    with workers() as found:
        yield found


def test_a_branch_that_reads_what_could_not_be_lowered_is_left_unjudged(tmp_path):
    # No rule stands against the first If; that its branch cannot be lowered comes out when it is tried.
    text = """<ir_version: 9, opset_import: ["": 17]>
        g (float[6] x, bool c) => (float[r] y) {
            [first] p = If (c) <
                then_branch = t () => (float[2,3] a) { s = Constant <value_ints = [2, 3]> () a = Reshape (x, s) },
                else_branch = e () => (float[6] b) { b = Relu (x) }>
            [second] q = Relu (p)
            [third] y = If (c) <
                then_branch = u () => (float[r] d) { d = Neg (q) },
                else_branch = f () => (float[6] f) { f = Relu (x) }>
        }"""
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    report = deploykit.check(path, targets=["coreml"])
    assert [finding.node for finding in report.findings if finding.severity == "error"] == ["first"]


def test_type_that_the_file_leaves_out_is_a_refusal_and_no_crash(tmp_path):
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Relu (x) }'
    )
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.UNDEFINED
    onnx.save(model, tmp_path / "model.onnx")
    report = deploykit.check(tmp_path / "model.onnx", targets=["coreml"])
    assert [(f.code, f.tensor) for f in report.findings if f.severity == "error"] == [("DK202", "x")]
    assert "unknown" in report.findings[0].message
