"""Core AI through the commands: published models, the direct route from PyTorch, and what lies between them."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("coreai_onnx")

import deploykit
from deploykit.isolation import workers

# What each takes, and how large its inputs are for it: recurrent layers and pools take known sizes only.
FAST = {
    "digits/digits_cnn.onnx": {},
    "mnist5k/mnist5k_cnn.onnx": {},
    "attacut/attacut-sc.onnx": {},
    "jvowels/jvowels_lstm.onnx": {"dims": {"N": [2, 2], "T": [9, 9]}},
}
SLOW = {
    "magika/model.onnx": {},
    "nsnet2/nsnet2-20ms-baseline.onnx": {"dims": {"batch_size": [2, 2], "frames": [7, 7]}},
    "ppocr_v4/cls.onnx": {"profiles": {"x": [[1, 3, 48, 192]] * 3}},
    "ppocr_v4/rec.onnx": {"profiles": {"x": [[1, 3, 48, 320]] * 3}},
}
MODULE = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = torch.nn.Conv2d(3, 5, 3, padding=1)

    def forward(self, image):
        return torch.relu(self.conv(image)).mean((2, 3))

def net():
    return Net().eval()
"""


@pytest.fixture(scope="module", autouse=True)
def one_pool():
    """The workers of all tests, started once."""
    with workers():
        yield


def verified(path, output, **more):
    report = deploykit.convert(path, to="coreai", output=output, samples=4, **more)
    assert not report.failed, report.findings
    assert report.artifact.execution == "real"
    assert all(row["passed"] for row in report.metrics["parity"]["parent"]["outputs"])
    return report


@pytest.mark.parametrize("name", FAST)
def test_published_models_are_verified_by_apples_runtime(shared_model, tmp_path, name):
    verified(shared_model(name), tmp_path / "m.aimodel", **FAST[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_more_published_models(shared_model, tmp_path, name):
    rng = np.random.default_rng(0)
    data = None
    if "profiles" in SLOW[name]:
        data = str(tmp_path / "x.npz")
        np.savez(data, x=rng.uniform(-1, 1, (2, *SLOW[name]["profiles"]["x"][0])).astype(np.float32))
    verified(shared_model(name), tmp_path / "m.aimodel", data=data, **SLOW[name])


def test_trees_are_refused_by_name(shared_model, tmp_path):
    report = deploykit.convert(shared_model("sklearn/bc_rf.onnx"), to="coreai", output=tmp_path / "m.aimodel")
    assert report.failed
    errors = [finding for finding in report.findings if finding.severity == "error"]
    assert [finding.node for finding in errors] == ["Scaler", "TreeEnsembleClassifier"]


@pytest.mark.slow
def test_a_pytorch_module_goes_the_direct_way_and_its_bytes_repeat(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("coreai_torch")
    (tmp_path / "nets.py").write_text(MODULE, encoding="utf-8")
    contents = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        report = deploykit.convert(
            f"{tmp_path / 'nets.py'}:net",
            to="coreai",
            output=tmp_path / name / "m.aimodel",
            inputs=["image:float32[batch,3,8,8]"],
            dims=["batch=1..8"],
            options={"route": "torch"},
        )
        assert not report.failed, report.findings
        files = sorted((tmp_path / name / "m.aimodel").iterdir())
        contents.append({file.name: file.read_bytes() for file in files})
    assert contents[0] == contents[1]
    assert (report.metrics["route"], report.artifact.execution) == ("torch", "real")
    assert report.artifact.inputs[0].shape == ("batch", 3, 8, 8)
