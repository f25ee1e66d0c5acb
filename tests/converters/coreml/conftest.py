"""The Core ML worker, models as text, and packages evaluated by an independent reader."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import onnx
import pytest

from deploykit.converters.coreml import TARGET
from deploykit.isolation import run_isolated, workers
from deploykit.reference import Reference

pytest.importorskip("coremltools")


@pytest.fixture
def save(tmp_path):
    """Writes a model given as text (or as a ModelProto) and returns its path."""

    def write(model, name="model.onnx"):
        path = tmp_path / name
        onnx.save(onnx.parser.parse_model(model) if isinstance(model, str) else model, path)
        return path

    return write


@pytest.fixture(scope="module")
def pool():
    with workers() as found:
        yield found


@pytest.fixture
def build(pool, tmp_path):
    """Runs the convert job: result and the package's path."""

    def run(model, *, dims=None, profiles=None, output="model.mlpackage", contract=None, **options):
        path = tmp_path / output
        arguments = {
            "model": str(model),
            "output": str(path),
            "options": options,
            "dims": dims or {},
            "profiles": profiles or {},
            "precision": "fp32",
            **({"contract": contract} if contract else {}),
        }
        function = "deploykit.converters.coreml.convert:convert_job"
        return run_isolated(TARGET.worker, function, arguments, block=TARGET.blocked), path

    return run


@pytest.fixture
def check(pool):
    """Runs the support job."""

    def run(model, *, dims=None, **options):
        arguments = {"model": str(model), "options": options, "dims": dims or {}, "profiles": {}}
        function = "deploykit.converters.coreml.support:support_job"
        return run_isolated(TARGET.worker, function, arguments, block=TARGET.blocked)

    return run


@pytest.fixture(scope="session")
def evaluate():
    """Runs a package with the interpreter: `evaluate(package, feeds)` gives outputs by name.

    Where the tests' own reader of MIL, which shares no code with it, knows every operator, both must agree.
    """
    from deploykit.converters.coreml.runtime import SimulatedRuntime

    file = Path(__file__).with_name("mil_semantics.py")
    spec = importlib.util.spec_from_file_location("mil_semantics", file)
    reader = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reader)

    def run(package, feeds):
        runtime = SimulatedRuntime(package)
        back = {made: name for name, made in runtime._names.items()}
        named = {back.get(name, name): array for name, array in feeds.items()}
        made = {runtime._names.get(name, name): array for name, array in runtime.predict(named).items()}
        if runtime.operators <= {*reader.OPERATORS, "const"}:
            for name, array in reader.run_package(package, feeds).items():
                close = 2e-3 if made[name].dtype == np.float16 else 1e-5
                np.testing.assert_allclose(made[name], array, rtol=close, atol=close, err_msg=name)
        return made

    return run


@pytest.fixture
def agrees(save, build, evaluate):
    """Converts a model given as text and compares every output with onnxruntime's; returns the MIL operators."""

    def check(text, feeds, *, dims=None, tolerance=2e-5):
        path = save(text)
        expected = Reference(path).predict(feeds)
        result, package = build(path, dims=dims)
        assert [f["message"] for f in result["findings"] if f["severity"] == "error"] == []
        made = evaluate(package, feeds)
        for name, array in expected.items():
            assert made[name].shape == array.shape
            np.testing.assert_allclose(made[name], array, rtol=tolerance, atol=tolerance, err_msg=name)
        return result["metrics"]["operators"]

    return check
