"""INT8 of what others lose: heads that join values of different sizes, and two convolutions behind one Concat.

openvinotoolkit/openvino#20437, microsoft/onnxruntime#9598: a detector finds nothing after INT8, because boxes up to 640
and scores up to 1 get one scale. openvinotoolkit/nncf#1936: two convolutions on one Concat fail, or the file grows.
"""

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest

import deploykit
from deploykit.isolation import workers

HEAD = """
<ir_version: 8, opset_import: ["" : 17]> g (float[1,8,16,16] x) => (float[1,8,16,16] y) {
  features = Conv <pads = [1, 1, 1, 1]> (x, w, b)
  boxes, logits = Split <axis = 1> (features, half)
  pixels = Mul (boxes, size)
  scores = Sigmoid (logits)
  y = Concat <axis = 1> (pixels, scores)
}
"""
JOINED = """
<ir_version: 8, opset_import: ["" : 17]> g (float[1,8,16,16] x) => (float[1,8,16,16] left, float[1,8,16,16] right) {
  a = Conv <pads = [1, 1, 1, 1]> (x, w, b)
  small = Relu (a)
  joined = Concat <axis = 1> (small, x)
  left = Conv <pads = [1, 1, 1, 1]> (joined, w1, b)
  right = Conv <pads = [1, 1, 1, 1]> (joined, w2, b)
}
"""


@pytest.fixture(scope="module", autouse=True)
def _one_worker():
    with workers():
        yield


def written(folder, text, **arrays):
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, folder / "model.onnx")
    rng = np.random.default_rng(1)
    np.savez(folder / "calib.npz", x=rng.normal(size=(32, 8, 16, 16)).astype(np.float32))
    return {"x": np.random.default_rng(2).normal(size=(1, 8, 16, 16)).astype(np.float32)}


def run(path, feeds):
    return ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, feeds)


def quantized(folder, target):
    report = deploykit.quantize(
        folder / "model.onnx",
        output=folder / "int8.onnx",
        precision="int8",
        target=target,
        calib=folder / "calib.npz",
    )
    assert report.exit_code == 0
    return report


def weights(*shape):
    return (0.2 * np.random.default_rng(0).normal(size=shape)).astype(np.float32)


@pytest.mark.parametrize("target", ["onnxruntime", "openvino", "tensorrt-rtx"])
def test_scores_beside_boxes_keep_their_resolution(tmp_path, target):
    arrays = {"w": weights(8, 8, 3, 3), "b": weights(8), "half": np.array([4, 4]), "size": np.float32(640)}
    feeds = written(tmp_path, HEAD, **arrays)
    report = quantized(tmp_path, target)
    assert report.metrics["int8_macs_share"] == 1
    (exact,), (found,) = run(tmp_path / "model.onnx", feeds), run(tmp_path / "int8.onnx", feeds)
    # One scale for both would round scores to steps of some pixels: 0 and nothing else.
    assert np.abs(found[:, 4:] - exact[:, 4:]).max() < 0.05
    assert np.abs(found[:, :4] - exact[:, :4]).max() < 0.03 * np.abs(exact[:, :4]).max()


@pytest.mark.parametrize("target", ["onnxruntime", "openvino", "tensorrt-rtx"])
def test_two_convolutions_on_one_concat(tmp_path, target):
    arrays = {"w": weights(8, 8, 3, 3), "w1": weights(8, 16, 3, 3), "w2": 3 * weights(8, 16, 3, 3), "b": weights(8)}
    feeds = written(tmp_path, JOINED, **arrays)
    report = quantized(tmp_path, target)
    assert report.metrics["quantized_nodes"] == 3
    assert report.metrics["size_ratio"] < 0.75
    for exact, found in zip(run(tmp_path / "model.onnx", feeds), run(tmp_path / "int8.onnx", feeds), strict=True):
        noise = ((found - exact) ** 2).sum() / (exact**2).sum()
        assert 10 * np.log10(1 / noise) > 30


def test_openvino_runs_both_and_is_equal(tmp_path):
    arrays = {"w": weights(8, 8, 3, 3), "w1": weights(8, 16, 3, 3), "w2": 3 * weights(8, 16, 3, 3), "b": weights(8)}
    written(tmp_path, JOINED, **arrays)
    quantized(tmp_path, "openvino")
    report = deploykit.convert(
        tmp_path / "int8.onnx", to="openvino", output=tmp_path / "m.xml", data=str(tmp_path / "calib.npz")
    )
    assert report.exit_code == 0
    assert report.artifact.precision == "int8"
