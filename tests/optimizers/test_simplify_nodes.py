"""The native engine against what onnxsim and onnxslim were recorded to leave of the same models."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from deploykit.errors import DeploykitError
from deploykit.isolation import workers

pytestmark = pytest.mark.slow
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("simplify_nodes", BENCHMARKS / "simplify_nodes.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_native_engine_is_valid_everywhere_and_close_to_the_better_of_the_others(benchmark):
    recorded = json.loads((BENCHMARKS / "simplify_nodes.json").read_text())
    found = {name: path for name, path in benchmark.models().items() if name in recorded}
    assert len(found) > 140, "the onnx package's models are always there"
    invalid, close = {}, 0
    with workers():
        for name, path in found.items():
            row = {**recorded[name], "native": benchmark.outcome("native", path, recorded[name]["bytes"])}
            close += benchmark.within(row)
            if not row["native"]["valid"]:
                invalid[name] = row["native"]["why"]
    # Nothing runs operators of training.
    assert set(invalid) <= {"simple/test_gradient_of_add", "simple/test_gradient_of_add_and_mul"}, invalid
    assert close >= 0.9 * len(found), f"{close} of {len(found)}"


def test_what_it_leaves_of_models_that_nothing_runs_is_all_of_them(benchmark, tmp_path):
    for name in ("simple/test_gradient_of_add", "simple/test_gradient_of_add_and_mul"):
        path = benchmark.models()[name]
        with workers():
            try:
                made = benchmark.attempt("native", path, tmp_path)
            except DeploykitError as problem:
                pytest.fail(problem.message)
        assert made.nodes == made.original["nodes"]
        tmp_path = tmp_path / "next"
        tmp_path.mkdir()
