"""Real models through `convert`: what verifies, at which sizes, and which nodes TVM's importer refuses."""

import pytest

pytest.importorskip("tvm")

import deploykit
from deploykit.isolation import workers

CLS = "x=1x3x48x192:1x3x48x192:1x3x48x192"
REC = "x=1x3x48x320:1x3x48x320:1x3x48x320"
DET = "x=1x3x64x96:1x3x64x96:1x3x64x96"
VERIFIED = {
    "digits/digits_cnn.onnx": {},
    "mnist5k/mnist5k_cnn.onnx": {},
    "attacut/attacut-sc.onnx": {},
    "jvowels/jvowels_lstm.onnx": {"dims": ["T=20..20"]},
    "magika/model.onnx": {"dims": ["unk__214=1..1"]},
    "dnsmos/sig_bak_ovr.onnx": {"dims": ["N=1..1"]},
    "nsnet2/nsnet2-20ms-baseline.onnx": {"dims": ["frames=20..20", "batch_size=1..1"]},
    "ppocr_v4/cls.onnx": {"profiles": [CLS]},
    "ppocr_v4/rec.onnx": {"profiles": [REC]},
    "ppocr_v4/det.onnx": {"profiles": [DET]},
}
REFUSED = {
    "sklearn/bc_rf.onnx": ({}, {"ai.onnx.ml.Scaler", "ai.onnx.ml.TreeEnsembleClassifier"}),
    "silero_vad/silero_vad.onnx": ({}, {"LSTM"}),
    # The number of steps is open.
    "jvowels/jvowels_lstm.onnx": ({}, {"LSTM"}),
}


@pytest.fixture(scope="module", autouse=True)
def _workers():
    with workers():
        yield


@pytest.mark.slow
@pytest.mark.parametrize("name", VERIFIED)
def test_a_model_computes_what_its_onnx_does(name, shared_model, tmp_path):
    report = deploykit.convert(shared_model(name), to="tvm", output=tmp_path / "m.so", samples=2, **VERIFIED[name])
    assert not report.failed, report.findings
    assert report.artifact.execution == "real"
    assert all(row["passed"] for row in report.metrics["parity"]["parent"]["outputs"])


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_model_names_the_nodes(name, shared_model, tmp_path):
    arguments, operators = REFUSED[name]
    report = deploykit.convert(shared_model(name), to="tvm", output=tmp_path / "m.so", samples=2, **arguments)
    refused = [finding for finding in report.findings if finding.code == "DK526"]
    assert {finding.op for finding in refused} == operators
    assert all(finding.node for finding in refused)
    assert not (tmp_path / "m.so").exists()
