"""`--layout` on TensorFlow sources: the outputs in the other order are those of the model."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest

import deploykit
from deploykit.errors import UsageError
from deploykit.isolation import workers

pytest.importorskip("tensorflow")
MAKE = """
import sys
import keras
import numpy as np
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((8, 10, 3), name="image"), keras.layers.Conv2D(4, 3, name="features")])
model.save(f"{sys.argv[1]}/conv.keras")
x = np.random.default_rng(0).standard_normal((2, 8, 10, 3)).astype(np.float32)
np.savez(f"{sys.argv[1]}/expected.npz", x=x, y=model.predict(x, verbose=0))
"""


@pytest.fixture(scope="module", autouse=True)
def pool():
    with workers() as found:
        yield found


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keras")
    subprocess.run([sys.executable, "-c", MAKE, str(folder)], check=True, capture_output=True)
    return folder


def test_every_image_tensor_gets_the_layout_and_no_transpose_is_left(made, tmp_path):
    out = tmp_path / "x.onnx"
    report = deploykit.export(made / "conv.keras", output=out, layout="nchw")
    assert report.exit_code == 0
    assert report.metrics["layout"] == {"image": "nchw", "features": "nchw"}
    assert report.artifact.inputs[0].shape == ("batch", 3, 8, 10)
    assert report.artifact.outputs[0].shape == ("batch", 4, 6, 8)
    assert [node.op_type for node in onnx.load(out).graph.node] == ["Conv"]
    data = np.load(made / "expected.npz")
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"image": np.ascontiguousarray(data["x"].transpose(0, 3, 1, 2))})
    np.testing.assert_allclose(found.transpose(0, 2, 3, 1), data["y"], rtol=1e-4, atol=1e-5)
    assert "DK691" in {finding.code for finding in report.findings}


def test_one_tensor_by_name(made, tmp_path):
    report = deploykit.export(made / "conv.keras", output=tmp_path / "x.onnx", layout=["features=nchw"])
    assert report.exit_code == 0
    assert report.artifact.inputs[0].shape == ("batch", 8, 10, 3)
    assert report.artifact.outputs[0].shape == ("batch", 4, 6, 8)


@pytest.mark.parametrize(("layout", "code"), [("nobody=nchw", "DK691"), ("nwhc", "DK604")])
def test_what_does_not_fit(made, tmp_path, layout, code):
    with pytest.raises(UsageError) as raised:
        deploykit.export(made / "conv.keras", output=tmp_path / "x.onnx", layout=[layout])
    assert raised.value.code == code


def test_it_belongs_to_tensorflow(tmp_path):
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) {y = Abs(x)}'
    )
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(UsageError) as raised:
        deploykit.export(tmp_path / "m.onnx", output=tmp_path / "o.onnx", layout="nchw")
    assert raised.value.code == "DK604"
