"""TensorFlow, Keras and LiteRT sources become ONNX that answers as their own framework does, or nothing is written."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import deploykit
from deploykit.errors import DeploykitError, GateError, InvalidFileError, ModelError, UsageError
from deploykit.isolation import run_isolated, workers
from deploykit.lazy import installed

pytestmark = pytest.mark.skipif(not installed("tensorflow") or not installed("tf2onnx"), reason="no TensorFlow here")


@pytest.fixture(scope="module", autouse=True)
def pool():
    """One TensorFlow process for the whole module; pytest itself never imports it."""
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
def models(pool, tmp_path_factory) -> Path:
    """Every model that the framework itself made, with its own answers beside some."""
    folder = tmp_path_factory.mktemp("models") / "a folder, ünïcode"
    folder.mkdir()
    run_isolated("tensorflow", "tensorflow_models:make", {"folder": str(folder)})
    return folder


def answers(path: Path, data: Path) -> None:
    """The file gives what the framework gave, run without graph optimisation."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    arrays = dict(np.load(data))
    feeds = {name[3:]: array for name, array in arrays.items() if name.startswith("in_")}
    expected = {name[4:]: array for name, array in arrays.items() if name.startswith("out_")}
    assert [output.name for output in session.get_outputs()] == list(expected)
    for output, value in zip(session.get_outputs(), session.run(None, feeds), strict=True):
        np.testing.assert_allclose(value, expected[output.name], rtol=1e-4, atol=1e-5)


def refusal(source: Path, output: Path, **options) -> DeploykitError:
    with pytest.raises(DeploykitError) as raised:
        deploykit.export(source, output=output, **options)
    assert not list(output.parent.glob("*")), "something was written"
    return raised.value


def shapes(report) -> dict[str, tuple]:
    return {spec.name: spec.shape for spec in (*report.artifact.inputs, *report.artifact.outputs)}


@pytest.mark.parametrize("name", ["conv.keras", "conv.h5"])
def test_a_keras_sequential_keeps_names_and_channels_last(models, tmp_path, name):
    report = deploykit.export(models / name, output=tmp_path / "conv.onnx")
    assert report.exit_code == 0
    assert shapes(report) == {"input_layer": ("batch", 12, 12, 3), "conv2d": ("batch", 12, 12, 8)}
    assert report.metrics["layout"] == {"input_layer": "nhwc", "conv2d": "nhwc"}
    assert any(finding.code == "DK654" for finding in report.findings)
    assert report.artifact.execution == "real"
    assert report.metrics["parity"]["samples"] == 6
    answers(tmp_path / "conv.onnx", models / "conv.npz")


def test_the_same_file_gives_the_same_bytes_without_machine_paths(models, tmp_path):
    for name in ("a.onnx", "b.onnx"):
        deploykit.export(models / "conv.keras", output=tmp_path / name)
        deploykit.export(models / "two.keras", output=tmp_path / f"two_{name}")
    for name in ("", "two_"):
        first, second = ((tmp_path / f"{name}{file}").read_bytes() for file in ("a.onnx", "b.onnx"))
        assert first == second
        assert str(models).encode() not in first
    assert "keras" in (tmp_path / "a.onnx.deploykit.json").read_text()


def test_outputs_share_the_symbols_of_the_inputs_that_they_follow(models, tmp_path):
    report = deploykit.export(models / "two.keras", output=tmp_path / "two.onnx", dims=["batch=1..4", "a_1=2..9"])
    assert shapes(report) == {
        "a": ("batch", "a_1", 4),
        "b": ("batch", 4),
        "pooled": ("batch", 5),
        "sum": ("batch", "a_1", 3),
        "twice": ("batch", 4),
    }
    assert report.metrics["dims"] == {"batch": [1, 4], "a_1": [2, 9]}


def test_dimensions_can_be_named_and_fixed(models, tmp_path):
    report = deploykit.export(
        models / "two.keras",
        output=tmp_path / "two.onnx",
        inputs=["a:float32[n,length,4]", "b:float32[n,4]"],
        dims=["n=2"],
    )
    assert shapes(report) == {
        "a": (2, "length", 4),
        "b": (2, 4),
        "pooled": (2, 5),
        "sum": (2, "length", 3),
        "twice": (2, 4),
    }


def test_a_model_that_was_never_built_is_refused(models, tmp_path):
    assert refusal(models / "shapeless.keras", tmp_path / "x.onnx").code == "DK611"


@pytest.mark.parametrize("name", ["lambda.keras", "lambda.h5"])
def test_python_code_in_a_keras_file_is_refused_and_not_run(models, tmp_path, name):
    error = refusal(models / name, tmp_path / "x.onnx")
    assert isinstance(error, ModelError)
    assert (error.code, error.op) == ("DK650", "Lambda")
    assert not (models / "marker").exists()


def test_text_operators_are_named_with_their_nodes(models, tmp_path):
    report = deploykit.export(models / "text.keras", output=tmp_path / "x.onnx")
    assert report.exit_code == 1
    assert isinstance(report.error, GateError)
    assert report.error.code == "DK653"
    assert any("StringSplitV2: " in line and "text_vectorization" in line for line in report.error.context)
    assert not list(tmp_path.iterdir())


def test_the_usual_signature_is_taken_by_itself(models, tmp_path):
    report = deploykit.export(models / "usual", output=tmp_path / "x.onnx")
    assert shapes(report) == {"x": ("batch", 4), "scores": ("batch", 3)}
    answers(tmp_path / "x.onnx", models / "usual.npz")


def test_one_of_several_signatures_has_to_be_named(models, tmp_path):
    folder = tmp_path / "refused"
    folder.mkdir()
    for wanted in (None, "magic"):
        error = refusal(models / "two", folder / "x.onnx", signature=wanted)
        assert isinstance(error, UsageError)
        assert (error.code, error.context) == ("DK652", ("signatures: scores, pooled",))
    report = deploykit.export(models / "two", output=tmp_path / "x.onnx", signature="pooled")
    assert shapes(report) == {
        "rows": ("batch", "rows_1", 4),
        "mean": ("batch", 4),
        "rows_out": ("batch", "rows_1", 4),
    }


@pytest.mark.parametrize(("name", "data"), [("tf1", "tf1"), ("slots", "usual")])
def test_what_the_newer_loader_refuses_goes_through_the_older_one(models, tmp_path, name, data):
    report = deploykit.export(models / name, output=tmp_path / "x.onnx")
    assert report.exit_code == 0
    answers(tmp_path / "x.onnx", models / f"{data}.npz")


@pytest.mark.parametrize(
    ("name", "dtype", "precision"),
    [("float", "float32", "fp32"), ("hybrid", "float32", "int8-dynamic"), ("int8", "int8", "int8")],
)
def test_litert_files_are_taken_float_and_quantized(models, tmp_path, name, dtype, precision):
    report = deploykit.export(models / f"{name}.tflite", output=tmp_path / "x.onnx")
    assert report.exit_code == 0
    assert report.artifact.precision == precision
    assert [spec.as_dict() for spec in report.artifact.inputs] == [
        {"name": "image", "dtype": dtype, "shape": ["batch", 8, 8, 3]}
    ]
    assert shapes(report)["output_0"] == ("batch", 40)
    assert report.metrics["parity"]["samples"] == 6


@pytest.mark.parametrize(("opset", "domain"), [(13, 13), (18, 18), (21, 21)])
def test_the_opset_is_the_one_that_was_asked_for(models, tmp_path, opset, domain):
    report = deploykit.export(models / "conv.keras", output=tmp_path / "x.onnx", opset=opset)
    assert report.artifact.opset == domain
    assert [(entry.domain, entry.version) for entry in onnx.load(tmp_path / "x.onnx").opset_import] == [("", domain)]


@pytest.mark.parametrize(
    ("name", "options", "code"),
    [
        ("conv.keras", {"signature": "serve"}, "DK604"),
        ("conv.keras", {"weights": __file__}, "DK604"),
        ("conv.keras", {"exporter": "dynamo"}, "DK604"),
        ("conv.keras", {"opset": 8}, "DK612"),
        ("conv.keras", {"inputs": ["x:float32[n,12,12,3]"]}, "DK627"),
        ("conv.keras", {"dims": ["n=1..2"]}, "DK620"),
        ("usual", {"signature": "pooled"}, "DK652"),
    ],
)
def test_options_that_do_not_fit_are_usage_errors(models, tmp_path, name, options, code):
    error = refusal(models / name, tmp_path / "x.onnx", **options)
    assert (error.code, error.exit_code) == (code, 2)


def test_a_sample_is_compared_too(models, tmp_path):
    np.savez(tmp_path / "sample.npz", x=np.ones((7, 4), np.float32))
    report = deploykit.export(models / "usual", output=tmp_path / "x.onnx", sample=tmp_path / "sample.npz")
    assert report.metrics["parity"]["samples"] == 9  # as it is, positive, negative, and six random ones
    np.savez(tmp_path / "wrong.npz", x=np.ones((7, 5), np.float32))
    with pytest.raises(DeploykitError) as refused:
        deploykit.export(models / "usual", output=tmp_path / "y.onnx", sample=tmp_path / "wrong.npz")
    assert refused.value.code == "DK622"


def test_a_file_that_computes_something_else_fails_the_proof(models, tmp_path):
    deploykit.export(models / "usual", output=tmp_path / "x.onnx")
    model = onnx.load(tmp_path / "x.onnx")
    weight = model.graph.initializer[0]
    weight.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight) * 1.01, weight.name))
    onnx.save(model, tmp_path / "wrong.onnx")
    request = {
        "kind": "savedmodel",
        "path": str(models / "usual"),
        "signature": None,
        "inputs": [],
        "dims": {},
        "sample": None,
        "seed": 0,
    }
    outcome = run_isolated(
        "tensorflow",
        "deploykit.exporters.tensorflow_proof:prove_job",
        {"request": request, "model": str(tmp_path / "wrong.onnx")},
    )
    assert not outcome["outputs"][0]["passed"]


@pytest.mark.parametrize("name", ["broken.h5", "broken.keras", "broken.tflite", "broken"])
def test_damaged_files_are_refused(models, tmp_path, name):
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    out.mkdir()
    path = folder / name
    if name == "broken":
        path.mkdir()
        (path / "saved_model.pb").write_bytes(b"\xff" * 100)
    else:
        whole = {"h5": "conv.h5", "keras": "conv.keras", "tflite": "float.tflite"}[name.partition(".")[2]]
        path.write_bytes((models / whole).read_bytes()[:600])
    error = refusal(path, out / "x.onnx")
    assert isinstance(error, (InvalidFileError, ModelError))
    assert error.exit_code == 2


@pytest.mark.parametrize(
    ("name", "outputs"),
    [
        ("fer_keras_h5/emotion_model.hdf5", {"predictions": ("batch", 7)}),
        (
            "blazeface/face_detection_short_range.tflite",
            {"regressors": (1, 896, 16), "classificators": (1, 896, 1)},
        ),
    ],
)
def test_published_models_are_proven(shared_model, tmp_path, name, outputs):
    report = deploykit.export(shared_model(name), output=tmp_path / "x.onnx")
    assert report.exit_code == 0
    assert {spec.name: spec.shape for spec in report.artifact.outputs} == outputs
    assert all(row["passed"] for row in report.metrics["parity"]["outputs"])
