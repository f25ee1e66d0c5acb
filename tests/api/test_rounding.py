import numpy as np
import onnx
import pytest

import deploykit
from deploykit import graph
from deploykit.api.rounding import settle
from deploykit.isolation import workers

MODEL = """<ir_version: 8, opset_import: ["": 17]> g (float[n,8] x) => (float[n,8] y)
<float third = {0.33333334}, float three = {3}, float s = {0.1}, float t = {0.12}, uint8 z = {100}> {
    [scale] m = Mul (x, third)
    [quantize] q = QuantizeLinear (m, s, z)
    [dequantize] y = DequantizeLinear (q, s, z)
}"""
BORDER = np.array([-5.55, -1.5, -0.9, -0.15, 0.15, 0.9, 1.5, 5.55], np.float32)


@pytest.fixture(scope="module", autouse=True)
def _one_worker():
    with workers():
        yield


@pytest.fixture
def files(tmp_path):
    """The model, and a function that writes one with a changed line; x.npz lies beside them."""
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(1).choice(BORDER, (1, 100, 8)))

    def write(name, *pairs):
        text = MODEL
        for before, after in pairs:
            assert before in text
            text = text.replace(before, after)
        onnx.save(onnx.parser.parse_model(text), tmp_path / name)
        return tmp_path / name

    return write


def validated(first, second):
    return deploykit.validate(first, second, data=str(first.with_name("x.npz")))


def test_rounding_alone_passes_and_says_so(files):
    report = validated(files("q.onnx"), files("other.onnx", ("Mul (x, third)", "Div (x, three)")))
    assert not report.failed
    (said,) = [finding for finding in report.findings if finding.code == "DK446"]
    assert "all 2 segments between quantizations are right, 800 integers among them" in said.message
    row = report.metrics["outputs"][0]
    assert row["passed"]
    assert row["sqnr_db"] < 30
    assert row["tolerance"] == "SQNR >= 30 dB, or every segment right by itself"
    assert report.metrics["segments"]["worst"] == pytest.approx(0.5, abs=1e-3)


def test_a_fault_of_the_same_size_fails_and_is_named(files):
    report = validated(files("q.onnx"), files("other.onnx", ("Linear (m, s, z)", "Linear (m, t, z)")))
    assert report.failed
    assert {finding.code for finding in report.findings if finding.severity == "error"} == {"DK401"}
    (said,) = [finding for finding in report.findings if finding.code == "DK447"]
    assert said.tensor == "q"
    assert "made by scale (Mul)" in said.message
    assert not report.metrics["outputs"][0]["passed"]


def test_limits_that_were_given_hold(files):
    first, second = files("q.onnx"), files("other.onnx", ("Mul (x, third)", "Div (x, three)"))
    report = deploykit.validate(first, second, data=str(first.with_name("x.npz")), min_sqnr=30)
    assert report.failed
    assert "segments" not in report.metrics


def test_convert_takes_what_is_right(files):
    pytest.importorskip("openvino")
    model = files("q.onnx")
    report = deploykit.convert(
        model, to="openvino", output=model.with_suffix(".xml"), data=str(model.with_name("x.npz"))
    )
    assert not report.failed
    assert report.metrics["parity"]["parent"]["outputs"][0]["passed"]


ROWS = [{"name": "y", "sqnr_db": 24.0, "passed": False, "tolerance": "SQNR >= 30 dB"}]
DIFFERS = {"severity": "error", "code": "DK401", "message": "y differs", "tensor": "y"}


@pytest.mark.parametrize(("measured", "excused"), [(24.0, True), (5.0, False)])
def test_without_integers_the_limit_stands_and_the_models_own_spread_is_said(files, measured, excused):
    def call(function, **arguments):
        return {"segments": 0} if function.endswith("segments_job") else {"y": 25.0}

    parent = graph.describe(files("q.onnx"))
    result = {"row": "int8-parent", "outputs": [{**ROWS[0], "sqnr_db": measured}], "findings": [DIFFERS]}
    found = settle(call, parent, parent.path, result, {}, {})
    assert not found["outputs"][0]["passed"]
    assert [finding["code"] for finding in found["findings"]] == ["DK401"] + ["DK448"] * excused


@pytest.mark.parametrize(
    "change",
    [
        {"row": "int8"},
        {"outputs": [{**ROWS[0], "passed": True}]},
        {"findings": [{**DIFFERS, "code": "DK402"}]},
        {"findings": [{**DIFFERS, "code": "DK403"}]},
    ],
    ids=["against float", "passed", "NaN", "shape"],
)
def test_nothing_else_is_looked_at(files, change):
    def call(function, **arguments):
        raise AssertionError(function)

    parent = graph.describe(files("q.onnx"))
    result = {"row": "int8-parent", "outputs": ROWS, "findings": [DIFFERS], **change}
    assert settle(call, parent, parent.path, result, {}, {}) == result
