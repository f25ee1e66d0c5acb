"""Published models in Node, compared with ONNX Runtime as they are converted; the whole set is long."""

import numpy as np
import pytest

import deploykit

pytestmark = pytest.mark.usefixtures("node")
FAST = ("digits/digits_cnn.onnx", "sklearn/bc_rf.onnx", "magika/model.onnx")
LONG = (
    "attacut/attacut-sc.onnx",
    "dnsmos/sig_bak_ovr.onnx",
    "jvowels/jvowels_lstm.onnx",
    "mnist5k/mnist5k_cnn.onnx",
    "nsnet2/nsnet2-20ms-baseline.onnx",
    "ppocr_v4/cls.onnx",
    "ppocr_v4/det.onnx",
    "ppocr_v4/rec.onnx",
    "silero_vad/silero_vad.onnx",
    "silero_vad/silero_vad_op18_ifless.onnx",
)


def data_for(name, folder):
    rng = np.random.default_rng(0)
    if name.startswith("silero"):
        voice = 0.1 * rng.standard_normal((4, 576)).astype(np.float32)
        feeds = {"input": voice, "state": np.zeros((4, 2, 1, 128), np.float32), "sr": np.int64(16000)}
    elif name == "ppocr_v4/det.onnx":
        feeds = {"x": rng.standard_normal((2, 3, 64, 96)).astype(np.float32)}
    else:
        return None
    np.savez(folder / "data.npz", **feeds)
    return str(folder / "data.npz")


@pytest.mark.parametrize("name", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in LONG)])
def test_model_runs_in_node_and_computes_what_onnx_runtime_does(shared_model, tmp_path, name):
    data = data_for(name, tmp_path)
    options = {"browser": "no", **({"sample": data} if data else {})}
    report = deploykit.convert(
        shared_model(name), to="onnxruntime-web", output=tmp_path / "web", data=data, options=options
    )
    assert not report.failed
    assert report.artifact.execution == "real"
    parent = report.metrics["parity"]["parent"]
    assert "Node" in parent["engines"]["candidate"]
    assert all(output["passed"] for output in parent["outputs"])
