"""The model zoo of benchmarks/zoo.py from both of PyTorch's exporters; a sample in CI."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from deploykit.converters.coreml.runtime import SimulatedRuntime
from deploykit.parity import TOLERANCES
from deploykit.reference import Reference

pytest.importorskip("coremltools")
pytest.importorskip("torch")
pytest.importorskip("transformers")
BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
TABLE = json.loads((BENCHMARKS / "coreml_models.json").read_text(encoding="utf-8"))["zoo"]
SAMPLE = {"llama-dynamo-dynamic", "yolo-torchscript-dynamic", "lstm-dynamo-static"}
HALF = {"lstm-dynamo-static"}


def _variant(name):
    model, exporter, sizes = name.rsplit("-", 2)
    return model, exporter, sizes == "dynamic"


@pytest.fixture(scope="module")
def zoo():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield importlib.import_module("zoo")
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.fixture
def exported(zoo, pool, tmp_path):
    """Exports a variant: its file, its bounds, and feeds with what PyTorch gives."""

    def run(name):
        model, exporter, dynamic = _variant(name)
        path = tmp_path / "model.onnx"
        report = zoo.export(model, exporter, dynamic, path)
        assert report.exit_code == 0, report.error or report.findings
        bounds = zoo.ZOO[model].bounds(exporter, dynamic)
        feeds = [zoo.feeds(model, bounds, place) for place in range(3 if dynamic else 1)]
        return path, bounds, [(given, zoo.torch_outputs(model, given)) for given in feeds]

    return run


def test_every_variant_is_in_the_table(zoo):
    assert set(TABLE) == {zoo.stem(*variant) for variant in zoo.variants()}, "run benchmarks/coreml_models.py"
    assert {row["title"] for row in TABLE.values() if row["asked"] and "fp32" not in row} == set()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in SAMPLE else pytest.mark.slow)
        for name, row in TABLE.items()
        if "fp32" in row
    ],
)
def test_a_network_of_the_zoo_is_right(name, exported, build):
    path, bounds, samples = exported(name)
    result, package = build(path, dims=bounds)
    assert [f["message"] for f in result["findings"] if f["severity"] == "error"] == []
    runtime, reference = SimulatedRuntime(package), Reference(path)
    # The families that are asked for keep to the factor alone; the others to the whole row of the tolerances.
    row = TOLERANCES["fp32"]
    rtol = 0.0 if TABLE[name]["asked"] else row.rtol
    for feeds, outputs in samples:
        made, expected = runtime.predict(feeds), reference.predict(feeds)
        for (key, wanted), other in zip(expected.items(), outputs, strict=True):
            for array in (wanted, other):
                assert made[key].shape == array.shape
                limit = row.atol_factor * np.abs(array).max(initial=0)
                np.testing.assert_allclose(made[key], array, rtol=rtol, atol=limit)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in HALF else pytest.mark.slow)
        for name, row in TABLE.items()
        if row.get("fp16", {}).get("passed")
    ],
)
def test_a_network_of_the_zoo_is_right_in_fp16(name, exported, build):
    path, bounds, samples = exported(name)
    result, package = build(path, dims=bounds, compute_precision="fp16")
    assert [f["message"] for f in result["findings"] if f["severity"] == "error"] == []
    runtime, reference, row = SimulatedRuntime(package), Reference(path), TOLERANCES["fp16"]
    for feeds, _ in samples:
        made = runtime.predict(feeds)
        for key, wanted in reference.predict(feeds).items():
            limit = row.atol_factor * np.abs(wanted).max(initial=0)
            np.testing.assert_allclose(made[key], wanted, rtol=row.rtol, atol=limit)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if "refused" in row])
def test_a_network_that_is_refused_names_its_nodes(name, exported, build):
    path, bounds, _ = exported(name)
    result, package = build(path, dims=bounds)
    found = {f["op"] for f in result["findings"] if f["severity"] == "error"}
    assert {row["op"] for row in TABLE[name]["refused"]} <= found
    assert not package.exists()
