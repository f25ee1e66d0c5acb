import pytest

from deploykit import graph
from deploykit.converters.onnxruntime_web.limits import findings_for, size_findings


@pytest.mark.parametrize(
    ("size", "severity"), [(2**31 - 1, None), (2**31, "warning"), (2**32 - 1, "warning"), (2**32, "error")]
)
def test_sizes_beyond_a_browsers_are_said(size, severity):
    found = size_findings(size)
    assert [finding.severity for finding in found] == ([severity] if severity else [])
    assert all(finding.code == "DK573" for finding in found)


def test_int64_at_the_interface_and_inside_is_said_of_gpus_only(onnx_file):
    model = onnx_file("agraph (int64[N] x) => (int64[N] y) { [twice] y = Add (x, x) }")
    loaded = graph.load(model)
    assert findings_for(model, loaded, "wasm", {}) == []
    found = [finding for finding in findings_for(model, loaded, "webgpu", {}) if finding.code == "DK573"]
    assert [finding.severity for finding in found] == ["warning", "note"]
    assert "'x', 'y'" in found[0].message
    assert "Add 'twice'" in found[1].message


def test_operators_of_classic_models_are_in_the_wasm_build_only(onnx_file):
    text = "agraph (float[N,2] x) => (float[N,2] y) { [s] y = ai.onnx.ml.Scaler <offset = [0.0], scale = [2.0]> (x) }"
    model = onnx_file(text, header='<ir_version: 10, opset_import: ["": 20, "ai.onnx.ml": 3]>\n')
    for backend in ("webgpu", "webnn"):
        found = findings_for(model, graph.load(model), backend, {})
        assert ("DK201", "error", "s") in [(finding.code, finding.severity, finding.node) for finding in found]
    assert findings_for(model, graph.load(model), "wasm", {}) == []


def test_webgl_wants_one_size(onnx_file):
    model = onnx_file("agraph (float[N,4] x) => (float[N,4] y) { y = Relu (x) }")
    (said,) = findings_for(model, graph.load(model), "webgl", {})
    assert (said.code, said.severity) == ("DK573", "warning")
    assert "'x'" in said.message
    fixed = onnx_file("agraph (float[2,4] x) => (float[2,4] y) { y = Relu (x) }", "fixed.onnx")
    assert findings_for(fixed, graph.load(fixed), "webgl", {}) == []


def test_operators_that_webgpu_leaves_to_wasm_are_named_and_webgls_are_refused(onnx_file):
    model = onnx_file("agraph (float[2,2] x) => (float[] y) { [det] y = Det (x) }")
    loaded = graph.load(model)
    left = findings_for(model, loaded, "webgpu", {})
    assert any("'det'" in finding.message for finding in left)
    assert all(finding.severity != "error" for finding in left)
    refused = findings_for(model, loaded, "webgl", {})
    assert [(finding.code, finding.node) for finding in refused if finding.severity == "error"] == [("DK201", "det")]
