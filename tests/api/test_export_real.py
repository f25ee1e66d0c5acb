"""Published PyTorch weights under modules written from their state dicts: exported, proven, and as accurate as told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import deploykit
from deploykit.isolation import workers

MODULES = Path(__file__).parents[2] / "benchmarks" / "source_modules.py"


@pytest.fixture(scope="module", autouse=True)
def pool():
    with workers() as found:
        yield found


def session_of(path):
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def test_the_digits_classifier(shared_model, tmp_path):
    report = deploykit.export(
        f"{MODULES}:SmallCNN",
        output=tmp_path / "x.onnx",
        inputs=["input:float32[batch,1,8,8]"],
        weights=shared_model("digits/digits_cnn.pt"),
    )
    assert report.exit_code == 0
    data = np.load(shared_model("digits/digits_cnn_test.npz"))
    found = session_of(tmp_path / "x.onnx").run(None, {"input": data["x"]})[0].argmax(1)
    assert (found == data["y"]).mean() == pytest.approx(0.9933, abs=1e-4)


def test_the_mnist_classifier(shared_model, tmp_path):
    report = deploykit.export(
        f"{MODULES}:SmallCNN",
        output=tmp_path / "x.onnx",
        inputs=["input:float32[batch,1,28,28]"],
        weights=shared_model("mnist5k/mnist5k_cnn.pt"),
        args={"side": 28},
    )
    assert report.exit_code == 0
    x = np.random.default_rng(0).random((4, 1, 28, 28)).astype(np.float32)
    published = session_of(shared_model("mnist5k/mnist5k_cnn.onnx")).run(None, {"input": x})[0]
    found = session_of(tmp_path / "x.onnx").run(None, {"input": x})[0]
    np.testing.assert_allclose(found, published, rtol=1e-4, atol=1e-4)


def test_the_vowels_classifier_at_every_length(shared_model, tmp_path):
    report = deploykit.export(
        f"{MODULES}:VowelsLSTM",
        output=tmp_path / "x.onnx",
        inputs=["x:float32[batch,length,12]"],
        dims=["batch=1..8", "length=7..29"],
        weights=shared_model("jvowels/jvowels_lstm.pt"),
    )
    assert report.exit_code == 0
    assert {7, 29} < set(report.metrics["parity"]["proven"]["length"])
    data, session = np.load(shared_model("jvowels/jvowels_test.npz")), session_of(tmp_path / "x.onnx")
    right = [
        session.run(None, {"x": data[f"x{at:03}"][None]})[0].argmax() == label for at, label in enumerate(data["y"])
    ]
    assert np.mean(right) == pytest.approx(0.9730, abs=1e-4)


def test_crepe(shared_model, tmp_path):
    report = deploykit.export(
        f"{MODULES}:Crepe",
        output=tmp_path / "x.onnx",
        inputs=["frames:float32[batch,1024]"],
        weights=shared_model("crepe/tiny.pth"),
    )
    assert report.exit_code == 0
    data = np.load(shared_model("crepe/crepe_dev.npz"))
    x = data["x"]
    x = (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)
    bins = session_of(tmp_path / "x.onnx").run(None, {"frames": x})[0].argmax(1)
    cents = 20 * bins + 1997.3794084376191
    wanted = 1200 * np.log2(data["f0"] / 10)
    assert (np.abs(cents - wanted) < 50).mean() == pytest.approx(0.9933, abs=1e-3)
