"""Real models: what the parser accepts is built; what is refused is named. Nothing is executed without a GPU."""

from __future__ import annotations

import pytest

import deploykit
from deploykit.isolation import workers

pytest.importorskip("tensorrt_rtx")
# By model: bounds or a profile.
BUILT = {
    "digits/digits_cnn.onnx": {"dims": {"N": [1, 8]}},
    "mnist5k/mnist5k_cnn.onnx": {"dims": {"N": [1, 8]}},
    "jvowels/jvowels_lstm.onnx": {"dims": {"N": [1, 8], "T": [1, 29]}},
    "attacut/attacut-sc.onnx": {"dims": {"seq_len": [1, 128]}},
}
SLOW = {
    "dnsmos/sig_bak_ovr.onnx": {"dims": {"N": [1, 8]}},
    "nsnet2/nsnet2-20ms-baseline.onnx": {"dims": {"batch_size": [1, 4], "frames": [1, 100]}},
    "magika/model.onnx": {"dims": {"unk__214": [1, 8]}},
    "silero_vad/silero_vad_op18_ifless.onnx": {"dims": {"batch": [1, 8], "sequence": [576, 576]}},
    "ppocr_v4/det.onnx": {"profiles": ["x=1x3x320x320:1x3x640x640:2x3x640x640"]},
    "ppocr_v4/rec.onnx": {"profiles": ["x=1x3x48x320:1x3x48x320:8x3x48x640"]},
    # Paddle calls every open dimension `?`: 48 and 192 are two.
    "ppocr_v4/cls.onnx": {"profiles": ["x=1x3x48x192:1x3x48x192:8x3x48x192"]},
}
REFUSED = {
    "silero_vad/silero_vad.onnx": (
        {"dims": {"input_dim0": [1, 8], "input_dim1": [576, 576], "state_dim1": [1, 8]}},
        "If",
    ),
    "sklearn/bc_rf.onnx": ({"dims": {"X_dim0": [1, 8]}}, "TreeEnsembleClassifier"),
}


@pytest.fixture(scope="module", autouse=True)
def pool():
    with workers() as found:
        yield found


@pytest.mark.parametrize("name", [*BUILT, *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW)])
def test_it_is_built(shared_model, tmp_path, name):
    report = deploykit.convert(
        shared_model(name), to="tensorrt-rtx", output=tmp_path / "m.engine", **{**BUILT, **SLOW}[name]
    )
    assert report.exit_code == 0, [finding.message for finding in report.findings]
    assert report.metrics["static_check"]["accelerators"] == ["sm89", "sm120"]
    assert [finding.severity for finding in report.findings if finding.code != "DK502"] in ([], ["note"])


@pytest.mark.parametrize("name", REFUSED)
def test_what_refuses_it_is_named(shared_model, tmp_path, name):
    given, op = REFUSED[name]
    report = deploykit.convert(shared_model(name), to="tensorrt-rtx", output=tmp_path / "m.engine", **given)
    assert report.exit_code == 1
    named = [finding for finding in report.findings if finding.severity == "error"]
    assert named
    assert all(finding.node for finding in named)
    assert op in {finding.op for finding in named}
