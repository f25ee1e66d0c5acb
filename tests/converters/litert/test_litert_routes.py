from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from lite_models import batch, dense, sqnr

import deploykit
from deploykit.converters.litert.runtime import load
from deploykit.environments import is_ready
from deploykit.errors import GateError, UsageError
from deploykit.runtime import RuntimeOptions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

EXACT = RuntimeOptions(optimize=False)
CONV = """
agraph (float[n, 3, 8, 8] image) => (float[n, 4, 8, 8] found)
{
    c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (image, w)
    found = Relu (c)
}
"""
QDQ = """
agraph (float[2, 4] x) => (float[2, 4] y)
<float s = {0.1}, int8 z = {0}>
{
    q = QuantizeLinear (x, s, z)
    y = DequantizeLinear (q, s, z)
}
"""
KERAS = """
import keras
def net():
    keras.utils.set_random_seed(1)
    image = keras.Input((16, 16, 3), name="image")
    hidden = keras.layers.Conv2D(8, 3, activation="relu")(image)
    hidden = keras.layers.GlobalAveragePooling2D()(hidden)
    return keras.Model(image, keras.layers.Dense(4, name="scores")(hidden))
"""
TORCH = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.last = torch.nn.Linear(8, 5)
    def forward(self, x):
        y = torch.nn.functional.max_pool2d(torch.relu(self.conv(x)), 2)
        return self.last(y.mean((2, 3)))
"""


def test_a_lite_file_is_quantized_and_compared_with_itself(tmp_path: Path) -> None:
    lite, source, calib = dense(), tmp_path / "float.tflite", tmp_path / "calib.npz"
    source.write_bytes(lite.content)
    np.savez(calib, x=batch(128))
    output = tmp_path / "small.tflite"
    report = deploykit.convert(
        source, to="litert", output=output, options={"precision": "int8"}, calib=calib, data=str(calib)
    )
    assert report.status == "passed"
    assert report.metrics["route"] == "tensorflow"
    assert report.metrics["integer_operators"] == 2
    artifact = report.artifact
    assert artifact is not None
    assert (artifact.precision, artifact.execution) == ("int8", "real")
    assert artifact.options["calib_sha256"]
    x = batch(32, seed=7)
    assert sqnr(lite(x), load(output, EXACT).predict({"x": x})["y"]) > 25


def test_quantize_and_dequantize_nodes_are_refused_with_the_way(tmp_path: Path, onnx_file: Callable[..., Path]) -> None:
    report = deploykit.convert(onnx_file(QDQ), to="litert", output=tmp_path / "m.tflite")
    assert isinstance(report.error, GateError)
    assert report.error.code == "DK569"
    assert "--option precision=int8 --calib DATA" in report.error.hint


def test_calibration_is_not_taken_for_nothing(tmp_path: Path, onnx_file: Callable[..., Path]) -> None:
    calib = tmp_path / "calib.npz"
    np.savez(calib, image=np.zeros((4, 3, 8, 8), np.float32))
    w = np.ones((4, 3, 3, 3), np.float32)
    with pytest.raises(UsageError) as caught:
        deploykit.convert(onnx_file(CONV, w=w), to="litert", output=tmp_path / "m.tflite", calib=calib)
    assert caught.value.code == "DK803"


@pytest.mark.slow
@pytest.mark.skipif(not is_ready("onnx2tf"), reason="needs the managed environment onnx2tf")
def test_an_onnx_model_keeps_its_layout_and_its_names(tmp_path: Path, onnx_file: Callable[..., Path]) -> None:
    w = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    output = tmp_path / "m.tflite"
    report = deploykit.convert(onnx_file(CONV, w=w), to="litert", output=output)
    assert report.status == "passed"
    assert report.metrics["parity"]["parent"]["outputs"][0]["passed"]
    runtime = load(output, EXACT)
    assert [spec.describe() for spec in (*runtime.inputs, *runtime.outputs)] == [
        "float32 [n, 3, 8, 8]",
        "float32 [n, 4, 8, 8]",
    ]


@pytest.mark.slow
def test_a_keras_model_goes_directly(tmp_path: Path) -> None:
    import subprocess
    import sys

    (tmp_path / "net.py").write_text(KERAS + f"\nnet().save({str(tmp_path / 'net.keras')!r})\n")
    subprocess.run([sys.executable, str(tmp_path / "net.py")], check=True, capture_output=True)
    outputs = []
    for name in ("a", "b"):
        output = tmp_path / name / "net.tflite"
        output.parent.mkdir()
        report = deploykit.convert(tmp_path / "net.keras", to="litert", output=output, options={"route": "tensorflow"})
        assert report.status == "passed"
        outputs.append(output.read_bytes())
    assert outputs[0] == outputs[1]
    assert [spec.describe() for spec in load(output, EXACT).inputs] == ["float32 [batch, 16, 16, 3]"]


@pytest.mark.slow
@pytest.mark.skipif(not is_ready("litert-torch"), reason="needs the managed environment litert-torch")
def test_a_module_goes_directly_with_its_varying_batch(tmp_path: Path) -> None:
    (tmp_path / "lite_net.py").write_text(TORCH)
    output = tmp_path / "net.tflite"
    report = deploykit.convert(
        f"{tmp_path / 'lite_net.py'}:Net",
        to="litert",
        output=output,
        inputs=["x:float32[batch,3,16,16]"],
        dims=["batch=1..8"],
        options={"route": "torch"},
    )
    assert report.status == "passed"
    runtime = load(output, EXACT)
    assert [spec.describe() for spec in runtime.inputs] == ["float32 [batch, 3, 16, 16]"]
    assert runtime.predict({"x": np.zeros((3, 3, 16, 16), np.float32)})["output"].shape == (3, 5)
