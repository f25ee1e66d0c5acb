"""A worker for TensorRT-RTX, and models as text."""

from __future__ import annotations

import onnx
import pytest

from deploykit.converters.tensorrt_rtx import TARGET
from deploykit.isolation import run_isolated, workers

pytest.importorskip("tensorrt_rtx")


@pytest.fixture
def save(tmp_path):
    """Writes a model given as text and returns its path."""

    def write(text, name="model.onnx"):
        path = tmp_path / name
        onnx.save(onnx.parser.parse_model(text), path)
        return path

    return write


@pytest.fixture(scope="module")
def pool():
    with workers() as found:
        yield found


def _job(kind):
    return f"deploykit.converters.tensorrt_rtx.{kind}:{kind}_job"


@pytest.fixture
def build(pool, tmp_path):
    """Runs the convert job: result and the engine's path."""

    def run(model, *, dims=None, profiles=None, output="model.engine", **options):
        path = tmp_path / output
        arguments = {
            "model": str(model),
            "output": str(path),
            "options": options,
            "dims": dims or {},
            "profiles": profiles or {},
            "precision": "fp32",
        }
        return run_isolated(TARGET.worker, _job("convert"), arguments), path

    return run


@pytest.fixture
def check(pool):
    """Runs the support job."""

    def run(model, *, dims=None, profiles=None, **options):
        arguments = {"model": str(model), "options": options, "dims": dims or {}, "profiles": profiles or {}}
        return run_isolated(TARGET.worker, _job("support"), arguments)

    return run
