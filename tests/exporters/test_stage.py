"""The stage's own promises: options without machine paths, and a missing PyTorch named before any work."""

from __future__ import annotations

import json

import pytest

import deploykit
from deploykit.errors import ExitCode, MissingDependencyError
from deploykit.exporters import stage
from deploykit.exporters.sources import detect


def test_options_have_digests_and_no_folders(tmp_path):
    file = tmp_path / "net.py"
    file.write_text("class Net: ...\n")
    (tmp_path / "w.pt").write_bytes(b"weights")
    options = stage.ExportOptions(weights=tmp_path / "w.pt", args={"width": 3}, seed=7)
    made = stage.ExportStage(detect(f"{file}:Net"), "torch", options).options
    assert made["source"] == "net.py:Net"
    assert set(made["sha256"]) == {"source", "weights"}
    assert str(tmp_path) not in json.dumps(made)


def test_a_missing_pytorch_is_exit_3_with_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(stage, "installed", lambda package: package != "torch")
    file = tmp_path / "net.py"
    file.write_text("class Net: ...\n")
    with pytest.raises(MissingDependencyError) as refused:
        deploykit.export(f"{file}:Net", output=tmp_path / "net.onnx", inputs=["x:float32[1]"])
    assert refused.value.exit_code == ExitCode.UNAVAILABLE
    assert refused.value.hint == "pip install 'deploykit[torch]'"
    assert not (tmp_path / "net.onnx").exists()
