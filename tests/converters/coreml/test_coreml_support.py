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


def test_without_bounds_a_graph_is_tried_with_open_sizes(tmp_path):
    # The rank of p comes out when the Reshape is lowered: inference alone does not know it.
    text = """<ir_version: 9, opset_import: ["": 17]>
        g (float[n,?,8] x, float[8,4] w) => (float y)
        <int64 i = {0}, int64[1] z = {0}, int64[1] r = {-1}, int64[1] e = {8}> {
            s = Shape (x)
            [first] n1 = Gather (s, z)
            [joined] a = Concat <axis=0> (n1, r, e)
            [same] v = Reshape (x, a)
            [product] p = MatMul (v, w)
            [all] y = Relu (p)
        }"""
    path = tmp_path / "model.onnx"
    model = onnx.parser.parse_model(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(model, path)
    report = deploykit.check(path, targets=["coreml"])
    (bounds,) = [finding for finding in report.findings if finding.code == "DK520"]
    assert "'n' and 'x_dim1'" in bounds.message
    assert "--dim n=1..64 --dim x_dim1=1..64" in bounds.hint
    assert [finding.code for finding in report.findings if finding.code in ("DK201", "DK210")] == []


def test_what_open_sizes_alone_forbid_is_conditional_and_says_which_sizes_to_give(tmp_path):
    text = """<ir_version: 9, opset_import: ["": 17]>
        g (float[n,m,k] x) => (float[a,b] y) { [flat] f = Flatten (x) [after] y = Relu (f) }"""
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    report = deploykit.check(path, targets=["coreml"])
    told = [finding for finding in report.findings if finding.code == "DK209"]
    assert [finding.node for finding in told] == ["flat", "after"]
    assert "not with all sizes open: sizes on both sides of its axis vary" in told[0].message
    assert "--dim n=SIZE --dim m=SIZE --dim k=SIZE" in told[0].hint
    report = deploykit.check(path, targets=["coreml"], dims=["n=1..4", "m=3", "k=5"])
    assert [finding.code for finding in report.findings if finding.severity in ("error", "warning")] == []


@pytest.mark.parametrize(
    ("inputs", "exponent", "refused"),
    [
        ("int32[2] x", "float e = {0.5}", True),  # as an integer it would be 0
        ("int32[2] x", "float e = {3.0}", False),
        ("int32[2] x", "int32 e = {-1}", True),
        ("int32[2] x, float[2] e", "", True),
        ("int32[2] x, int32[2] e", "", False),
        ("float[2] x", "float e = {0.5}", False),
    ],
)
def test_integers_to_a_power_that_is_none(tmp_path, inputs, exponent, refused):
    kind = inputs.split("[")[0]
    constants = f"<{exponent}>" if exponent else ""
    text = f"""<ir_version: 9, opset_import: ["": 17]> g ({inputs}) => ({kind}[2] y) {constants}
        {{ [power] y = Pow (x, e) }}"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    report = deploykit.check(tmp_path / "model.onnx", targets=["coreml"])
    assert [f.node for f in report.findings if f.severity == "error"] == (["power"] if refused else [])
