"""Checkpoints under the suffixes of TorchScript: said to be what they are, and brought in the way that is told."""

from __future__ import annotations

import pickle

import pytest
import torch

import deploykit
from deploykit.errors import ModelError, UsageError
from deploykit.isolation import workers

MODULE = """
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 2)

    def forward(self, x):
        return self.l(x)
"""


@pytest.fixture(scope="module", autouse=True)
def pool():
    with workers() as found:
        yield found


@pytest.fixture
def lightning(tmp_path):
    """As the trainer writes it: the module under `model`, a metric beside it, the state of the training."""
    state = {f"model.l.{name}": value for name, value in torch.nn.Linear(4, 2).state_dict().items()}
    state["train_accuracy.total"] = torch.zeros(())
    file = tmp_path / "last.ckpt"
    torch.save({"epoch": 3, "pytorch-lightning_version": "2.5.0", "state_dict": state, "optimizer_states": []}, file)
    return file, state


def test_a_lightning_checkpoint_is_named_and_taken_as_weights(lightning, tmp_path):
    file, state = lightning
    (tmp_path / "out").mkdir()
    out = tmp_path / "out" / "x.onnx"
    with pytest.raises(UsageError) as raised:
        deploykit.export(file, output=out)
    assert raised.value.code == "DK602"
    assert "PyTorch Lightning checkpoint" in raised.value.message
    assert f"--weights {file}" in raised.value.hint
    (tmp_path / "model.py").write_text(MODULE)
    report = deploykit.export(f"{tmp_path / 'model.py'}:Net", output=out, inputs=["x:float32[n,4]"], weights=file)
    assert report.exit_code == 0
    said = [finding.message for finding in report.findings if finding.code == "DK615"]
    assert any("'state_dict'" in text for text in said)
    assert any("'model.'" in text and "1 entries" in text for text in said)
    import onnx
    from onnx import numpy_helper

    weights = {item.name: numpy_helper.to_array(item) for item in onnx.load(out).graph.initializer}
    assert any((array == state["model.l.weight"].numpy()).all() for array in weights.values() if array.shape == (2, 4))


def test_a_yolo_checkpoint_is_named_and_not_loaded(tmp_path):
    # What the package writes is a zip whose pickle names its classes first.
    file = tmp_path / "yolo.pt"
    torch.save({"model": torch.zeros(2)}, file)
    import zipfile

    with zipfile.ZipFile(file) as old:
        members = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(file, "w") as new:
        for name, content in members.items():
            class_first = b"\x80\x02cultralytics.nn.tasks\nDetectionModel\n." if name.endswith("data.pkl") else content
            new.writestr(name, class_first)
    with pytest.raises(ModelError) as raised:
        deploykit.export(file, output=tmp_path / "x.onnx")
    assert raised.value.code == "DK605"
    assert "Ultralytics YOLO checkpoint" in raised.value.message
    assert "export(format='onnx')" in raised.value.hint


def test_a_bare_state_dict_is_named(tmp_path):
    torch.save(torch.nn.Linear(4, 2).state_dict(), tmp_path / "w.pt")
    with pytest.raises(UsageError) as raised:
        deploykit.export(tmp_path / "w.pt", output=tmp_path / "x.onnx")
    assert "a state dict" in raised.value.message
    assert "--weights" in raised.value.hint


def test_a_bare_pickle_is_not_run(tmp_path):
    marker = tmp_path / "ran"

    class Trap:
        def __reduce__(self):
            return (open, (str(marker), "w"))

    (tmp_path / "m.pt").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ModelError):
        deploykit.export(tmp_path / "m.pt", output=tmp_path / "x.onnx")
    assert not marker.exists()
