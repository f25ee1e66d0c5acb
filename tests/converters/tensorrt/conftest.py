"""Modules of recorded API shapes, importable by these tests."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import onnx
import pytest

from deploykit.isolation import workers

for name in ("fake_tensorrt", "fake_gpu"):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / f"{name}.py")
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])

from fake_tensorrt import CNN  # noqa: E402 - after it is found


@pytest.fixture(scope="module", autouse=True)
def pool():
    """Workers are started once."""
    with workers() as found:
        yield found


@pytest.fixture
def save(tmp_path):
    """Writes a model given as text and returns its path."""

    def write(text=CNN, name="model.onnx"):
        onnx.save(onnx.parser.parse_model(text), tmp_path / name)
        return tmp_path / name

    return write
