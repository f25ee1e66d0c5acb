"""Packages that coremltools itself made are simulated: every family, both precisions, compressed weights."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest

import deploykit
from deploykit.converters.coreml.runtime import SimulatedRuntime
from deploykit.converters.coreml.simulator.table import EVALUATORS
from deploykit.converters.coreml.simulator.vendor_blocks import batch_to_space, space_to_batch
from deploykit.converters.coreml.simulator.vendor_compressed import constexpr_lut_to_dense
from deploykit.errors import VendorError
from deploykit.isolation import run_isolated, workers
from deploykit.parity import TOLERANCES, OutputComparison

pytest.importorskip("torch")
FAMILIES = ("residual", "separable", "unet", "encoder", "patches", "causal", "speech")


@pytest.fixture(scope="module", autouse=True)
def pool():
    """One process with PyTorch and coremltools for the whole module."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *([before] if before else [])])
    try:
        with workers() as found:
            found.get("vendor")
            yield found
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


@pytest.fixture(scope="module")
def packages(pool, tmp_path_factory):
    folder = tmp_path_factory.mktemp("vendor")
    names = run_isolated("vendor", "vendor_packages:make", {"folder": str(folder)}, block=("tensorflow", "xgboost"))
    return folder, names


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_gives_what_its_module_gives(packages, family):
    folder, names = packages
    told = np.load(folder / f"{family}.npz")
    ran = [name for name in names if name.startswith(f"{family}-")]
    assert {name.rpartition("-")[2] for name in ran} == {"float32.mlpackage", "float16.mlpackage"}
    for name in ran:
        runtime = SimulatedRuntime(folder / name)
        (made,) = runtime.predict({runtime.inputs[0].name: told["input"]}).values()
        if "float32" in name:
            assert np.abs(made - told["output"]).max() <= 1e-5 * np.abs(told["output"]).max(), name
            continue
        row = OutputComparison("y", TOLERANCES["fp16"])
        row.add(told["output"], made.astype(np.float32))
        assert row.result()["passed"], (name, row.result())
        # Rounded after each operator: the error of half precision is there.
        assert row.result()["max_abs"] > 0, name


def test_validate_takes_a_package_made_elsewhere(packages, tmp_path):
    folder, _ = packages
    (spec,) = SimulatedRuntime(folder / "residual-export-float32.mlpackage").inputs
    (out,) = SimulatedRuntime(folder / "residual-export-float32.mlpackage").outputs
    told = np.load(folder / "residual.npz")
    # A model that answers this one input with the module's own answer.
    value = onnx.numpy_helper.from_array(told["output"], "told")
    made = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 19]> net (float[2,3,32,32] {spec.name}) => (float[2,10] {out.name}) '
        f"{{ z = ReduceSum <keepdims = 0> ({spec.name})  n = Sub (z, z)  {out.name} = Add (told, n) }}"
    )
    made.graph.initializer.append(value)
    onnx.save(made, tmp_path / "told.onnx")
    np.savez(tmp_path / "data.npz", **{spec.name: told["input"]})
    for precision in ("float32", "float16"):
        package = folder / f"residual-export-{precision}.mlpackage"
        report = deploykit.validate(tmp_path / "told.onnx", package, data=str(tmp_path / "data.npz"))
        passed = [row["passed"] for row in report.metrics["outputs"]]
        assert (report.exit_code == 0, passed) == (True, [True]), (precision, report.findings)
        assert report.metrics["execution"] == "simulated"


@pytest.fixture(scope="module")
def compressed(pool, tmp_path_factory):
    folder = tmp_path_factory.mktemp("compressed")
    names = run_isolated(
        "vendor", "vendor_packages:compressed", {"folder": str(folder)}, block=("tensorflow", "xgboost")
    )
    return folder, names


def test_compressed_weights_are_what_coremltools_decompresses_them_to(compressed):
    folder, names = compressed
    image = np.random.default_rng(0).standard_normal((2, 3, 32, 32)).astype(np.float32)
    for name in names:
        small, whole = (SimulatedRuntime(folder / f"{name}{end}.mlpackage") for end in ("", "-whole"))
        assert any(op.startswith("constexpr_") for op in small.operators), name
        assert not any(op.startswith("constexpr_") for op in whole.operators), name
        feeds = {small.inputs[0].name: image}
        (a,), (b,) = small.predict(feeds).values(), whole.predict(feeds).values()
        np.testing.assert_array_equal(a, b, err_msg=name)


def test_a_table_of_vectors_fills_its_axis():
    """The example in coremltools' documentation of the operator."""
    indices = np.array([[[0, 0], [1, 0]], [[1, 1], [0, 0]]], np.uint8)
    lut = np.array([1, 2, 3, 10, 20, 30], np.int8).reshape(1, 1, 1, 2, 3)
    first = [
        [[1, 1], [2, 2], [3, 3], [10, 1], [20, 2], [30, 3]],
        [[10, 10], [20, 20], [30, 30], [1, 1], [2, 2], [3, 3]],
    ]
    assert constexpr_lut_to_dense(indices, lut, vector_axis=np.int32(1)).tolist() == first
    second = [[[1, 2, 3, 1, 2, 3], [10, 20, 30, 1, 2, 3]], [[10, 20, 30, 10, 20, 30], [1, 2, 3, 1, 2, 3]]]
    assert constexpr_lut_to_dense(indices, lut, vector_axis=np.int32(2)).tolist() == second


def test_blocks_go_into_the_batch_as_in_tensorflow():
    """The example in TensorFlow's documentation of SpaceToBatchND, channels first."""
    x = np.arange(1, 17, dtype=np.float32).reshape(1, 1, 4, 4)
    made = space_to_batch(x, [2, 2], [[0, 0], [0, 0]])
    assert made.reshape(4, 4).tolist() == [[1, 3, 9, 11], [2, 4, 10, 12], [5, 7, 13, 15], [6, 8, 14, 16]]
    np.testing.assert_array_equal(batch_to_space(made, [2, 2], [[0, 0], [0, 0]]), x)
    odd = np.random.default_rng(0).standard_normal((2, 3, 5, 4)).astype(np.float32)
    there = space_to_batch(odd, [3, 2], [[1, 0], [0, 2]])
    assert there.shape == (12, 3, 2, 3)
    np.testing.assert_array_equal(batch_to_space(there, [3, 2], [[1, 0], [0, 2]]), odd)


def test_scalars_are_joined_to_a_vector():
    """As coremltools' PyTorch front-end makes shapes."""
    made = EVALUATORS["concat"]([np.asarray(np.int32(3)), np.asarray(np.int32(4))], axis=np.int32(0))
    assert made.tolist() == [3, 4]


def test_what_an_operator_of_such_a_package_cannot_be_computed_with_is_named(packages, monkeypatch):
    def failing(**_):
        raise ValueError("operands do not fit")

    folder, _ = packages
    runtime = SimulatedRuntime(folder / "residual-export-float32.mlpackage")
    monkeypatch.setitem(EVALUATORS, "relu", failing)
    with pytest.raises(VendorError) as raised:
        runtime.predict({runtime.inputs[0].name: np.load(folder / "residual.npz")["input"]})
    assert raised.value.code == "DK533"
    assert "relu" in raised.value.message
    assert "operands do not fit" in raised.value.message
