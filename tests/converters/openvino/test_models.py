"""Published models to OpenVINO: verified, or refused with the nodes that its front-end does not take."""

from __future__ import annotations

import numpy as np
import pytest

import deploykit
from deploykit.isolation import workers

FAST = {
    "digits/digits_cnn.onnx": {},
    "mnist5k/mnist5k_cnn.onnx": {},
    "attacut/attacut-sc.onnx": {},
    "jvowels/jvowels_lstm.onnx": {},
}
SLOW = {
    "magika/model.onnx": {},
    "nsnet2/nsnet2-20ms-baseline.onnx": {},
    "dnsmos/sig_bak_ovr.onnx": {"samples": 2},
    "ppocr_v4/cls.onnx": {"shape": (1, 3, 48, 192)},
    "ppocr_v4/rec.onnx": {"shape": (1, 3, 48, 320)},
    "ppocr_v4/det.onnx": {"shape": (1, 3, 64, 320)},
}
REFUSED = {
    "sklearn/bc_rf.onnx": {"Scaler", "TreeEnsembleClassifier"},
    "silero_vad/silero_vad.onnx": {"If_0", "If_0_else_branch__Inline_0__/decoder/If_1"},
}


@pytest.fixture(scope="module", autouse=True)
def one_pool():
    """The workers of all tests, started once."""
    with workers():
        yield


def verified(path, tmp_path, shape=None, samples=4, **more):
    if shape is not None:
        more["data"] = str(tmp_path / "x.npz")
        # Rendered lines are mostly one colour; plain noise makes the detector's output zero to seven digits.
        lines = np.ones((samples, *shape), np.float32)
        lines[:, :, :, 8:24, 16:160:7] = -1
        np.savez(more["data"], x=lines)
    report = deploykit.convert(path, to="openvino", output=tmp_path / "m.xml", samples=samples, **more)
    assert not report.failed, report.findings
    assert all(row["passed"] for row in report.metrics["parity"]["parent"]["outputs"])


@pytest.mark.parametrize("name", FAST)
def test_published_models_are_verified(shared_model, tmp_path, name):
    verified(shared_model(name), tmp_path, **FAST[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_more_published_models(shared_model, tmp_path, name):
    verified(shared_model(name), tmp_path, **SLOW[name])


@pytest.mark.slow
def test_a_stream_with_its_state(shared_model, tmp_path):
    rng = np.random.default_rng(0)
    windows = (rng.normal(size=(4, 1, 576)) * 0.1).astype(np.float32)
    data = tmp_path / "x.npz"
    np.savez(data, input=windows, state=np.zeros((4, 2, 1, 128), np.float32), sr=np.array(16000))
    path = shared_model("silero_vad/silero_vad_op18_ifless.onnx")
    verified(path, tmp_path, data=str(data), dims={"batch": [1, 1], "sequence": [576, 576]})


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_front_end_refuses_is_named(shared_model, tmp_path, name):
    report = deploykit.convert(shared_model(name), to="openvino", output=tmp_path / "m.xml")
    assert report.failed
    assert {finding.node for finding in report.findings if finding.severity == "error"} >= REFUSED[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["digits/digits_cnn.onnx", "magika/model.onnx", "nsnet2/nsnet2-20ms-baseline.onnx"])
def test_weights_in_eight_bits_keep_the_gate(shared_model, tmp_path, name):
    pytest.importorskip("nncf")
    verified(shared_model(name), tmp_path, options={"weights": "int8"})
