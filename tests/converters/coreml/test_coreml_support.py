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
