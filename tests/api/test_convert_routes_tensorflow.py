"""Routes from TensorFlow: one frozen function through coremltools where that is equal, through ONNX otherwise."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import deploykit
from deploykit.errors import ExitCode, UsageError, VendorError
from deploykit.isolation import run_isolated, workers
from deploykit.lazy import installed
from deploykit.runtime import open_runtime

pytestmark = pytest.mark.skipif(
    not all(map(installed, ("coremltools", "tensorflow", "tf2onnx"))), reason="no TensorFlow or coremltools"
)
BATCH = ["batch=1..4"]


@pytest.fixture(scope="module", autouse=True)
def pool():
    """The workers of the whole module; pytest itself never imports TensorFlow."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *([before] if before else [])])
    try:
        with workers() as found:
            found.get("tensorflow")
            yield found
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


@pytest.fixture(scope="module")
def models(pool, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    run_isolated("tensorflow", "tensorflow_routes:make", {"folder": str(folder)})
    return folder


def convert(source, tmp_path, name="made", **given):
    return deploykit.convert(source, to="coreml", output=tmp_path / f"{name}.mlpackage", dims=BATCH, **given)


def said(report, code):
    return next(finding.message for finding in report.findings if finding.code == code)


@pytest.mark.parametrize("route", ["tensorflow", "onnx"])
@pytest.mark.parametrize("source", ["mobile.keras", "mobile-saved"])
def test_both_routes_give_what_the_model_gives_in_its_layout(models, tmp_path, source, route):
    report = convert(models / source, tmp_path, options={"route": route})
    assert (report.exit_code, report.metrics["route"]) == (ExitCode.OK, route)
    assert report.artifact.inputs[0].shape == ("batch", 16, 16, 3)
    runtime = open_runtime(tmp_path / "made.mlpackage")
    told = np.load(models / "mobile.npz")
    (made,) = runtime.predict({"image": told["x"]}).values()
    np.testing.assert_allclose(made, told["y"], rtol=1e-4, atol=1e-6)
    assert [spec.name for spec in report.artifact.outputs] == ["scores" if source.endswith("keras") else "output_0"]


def test_the_direct_route_is_taken_by_itself_and_makes_the_same_bytes(models, tmp_path):
    made = [convert(models / "mobile.keras", tmp_path, name) for name in ("one", "two")]
    assert [report.metrics["route"] for report in made] == ["tensorflow", "tensorflow"]
    gate = made[0].metrics["parity"]["source"]
    assert gate["proven"] == {"batch": [1, 2, 3, 4]}
    assert gate["engines"]["reference"].startswith("Keras")
    files = [sorted(p for p in report.artifact.path.rglob("*") if p.is_file()) for report in made]
    assert [p.read_bytes() for p in files[0]] == [p.read_bytes() for p in files[1]]


def test_a_loop_that_coremltools_cannot_convert_goes_through_onnx(models, tmp_path):
    report = convert(models / "recurrent.keras", tmp_path)
    assert (report.exit_code, report.metrics["route"]) == (ExitCode.OK, "onnx")
    assert "Less" in said(report, "DK556")
    told = np.load(models / "recurrent.npz")
    made = open_runtime(tmp_path / "made.mlpackage").predict({"frames": told["x"]})["last"]
    np.testing.assert_allclose(made, told["y"], rtol=1e-4, atol=1e-6)
    with pytest.raises(VendorError) as raised:
        convert(models / "recurrent.keras", tmp_path, "named", options={"route": "tensorflow"})
    assert raised.value.code == "DK556"
    assert not (tmp_path / "named.mlpackage").exists()


def test_where_both_ways_fail_both_reasons_are_told(models, tmp_path):
    report = convert(models / "exact.keras", tmp_path)
    assert report.error is not None
    assert report.error.code == "DK653"
    assert "Erfc" in report.error.message
    assert "Erfc" in said(report, "DK556")


def test_pytorchs_route_does_not_start_at_a_keras_file(models, tmp_path):
    with pytest.raises(UsageError) as raised:
        convert(models / "mobile.keras", tmp_path, options={"route": "torch"})
    assert raised.value.code == "DK557"
