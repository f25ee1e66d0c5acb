"""Files that a target's options name: found from any folder, and standing in the key by their content."""

from __future__ import annotations

import numpy as np
import pytest

from deploykit import io
from deploykit.pipeline.config import Config
from deploykit.pipeline.plan import make_plan
from deploykit.pipeline.shorthand import to_yaml


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"model")
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    np.savez(tmp_path / "test.npz", x=np.zeros((4, 3), np.float32))
    return tmp_path


def config(labels):
    options = {"class_labels": labels, "author": "labels.txt"}
    return Config.model_validate({"source": "model.onnx", "targets": {"coreml": {"options": options}}})


def conversion(folder, labels="labels.txt"):
    return next(step for step in make_plan(config(labels), folder) if step.stage == "convert")


def test_the_file_is_found_from_any_folder_and_the_key_holds_its_content(folder):
    step = conversion(folder)
    assert step.options["options"]["class_labels"] == str(folder / "labels.txt")
    assert step.identity["options"]["class_labels"] == io.file_sha256(folder / "labels.txt")
    # Only an option that takes a file is one.
    assert step.options["options"]["author"] == step.identity["options"]["author"] == "labels.txt"
    before = step.identity
    (folder / "labels.txt").write_text("cat\nbird\n")
    assert conversion(folder).identity != before


def test_a_missing_file_is_left_to_the_step_to_refuse(folder):
    assert conversion(folder, "no.txt").identity["options"]["class_labels"] == "no.txt"


def test_a_configuration_that_is_written_elsewhere_leads_to_the_same_file(folder):
    (folder / "deep").mkdir()
    path = folder / "deep" / "deploykit.yaml"
    path.write_text(to_yaml(config("labels.txt"), path, folder))
    assert "class_labels: ../labels.txt" in path.read_text()
    assert "author: labels.txt" in path.read_text()
