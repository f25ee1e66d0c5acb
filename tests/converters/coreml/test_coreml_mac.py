"""The Mac side: what coremltools' `MLModel` is given and gives, with a recording stand-in that the interpreter backs.

Core ML itself is not here; the stand-in takes what `MLModel.predict` of coremltools 9.0 documents and nothing else.
"""

from __future__ import annotations

import json

import coremltools as ct
import numpy as np
import onnx
import pytest
from PIL import Image

from deploykit import converters
from deploykit.artifact import TensorSpec
from deploykit.benchmark import child
from deploykit.benchmark.feeds import prepare_job
from deploykit.comparison import compare_job
from deploykit.converters.coreml import runtime as coreml_runtime
from deploykit.errors import UnavailableError
from deploykit.reference import Reference
from deploykit.runtime import RuntimeOptions, open_runtime

HEADER = '<ir_version: 9, opset_import: ["" : 19]>'
RANDOM = {"source": None, "samples": 3, "seed": 0, "label": None, "dims": {}, "contract": None, "purpose": "parity"}
TYPES = (
    HEADER
    + """
net (float[2,3] x, int64[2] kind, bool flag, float scale) => (float[2,3] y, int64[2] twice, float single)
<int64 two = {2}, int64[2] all = {0,1}>
{
  part = Cast <to=1> (flag)
  scaled = Mul (x, scale)
  y = Add (scaled, part)
  twice = Mul (kind, two)
  single = ReduceSum <keepdims=0> (y, all)
}"""
)
HALF = HEADER + "net (float16[1,3] x) => (float16[1,3] y) { y = Relu (x) }"
PICTURE = (
    HEADER
    + """
net (float[1,3,4,6] image) => (float[1,3] scores)
<int64[2] axes = {2,3}>
{ p = ReduceMean <keepdims=0> (image, axes)
  scores = Softmax (p) }"""
)


class FakeModel:
    """MLModel on a Mac. loaded: (compute units, what predict was given) of every one that was opened to run."""

    real = ct.models.MLModel
    loaded: list = []

    def __new__(cls, path, *arguments, **options):
        return cls.real(path, *arguments, **options) if options.get("skip_model_load") else super().__new__(cls)

    def __init__(self, path, compute_units=None):
        from pathlib import Path

        self.inner = coreml_runtime.SimulatedRuntime(Path(path))
        self.given = []
        self.loaded.append((compute_units, self.given))

    def predict(self, given):
        self.given.append(given)
        feeds = {}
        for name, value in given.items():
            image = self.inner.door.images.get(name)
            if image is None:
                assert isinstance(value, np.ndarray)
                assert value.ndim >= 1
                assert value.dtype in (np.float16, np.float32, np.int32)
                feeds[name] = value
            else:
                assert isinstance(value, Image.Image)
                assert value.mode == "RGB"
                feeds[name] = np.asarray(value).transpose(2, 0, 1)[None]
                feeds[name] = feeds[name][:, ::-1] if image.rule.color == "bgr" else feeds[name]
        made = self.inner._interpreter.run(feeds)
        # Core ML gives float16 as float32, and no array has rank 0.
        return {
            name: value if isinstance(value, (str, dict))
            else np.atleast_1d(value.astype(np.float32) if value.dtype == np.float16 else value)
            for name, value in made.items()
        }  # fmt: skip


@pytest.fixture
def mac(monkeypatch):
    FakeModel.loaded.clear()
    monkeypatch.setattr(ct.models, "MLModel", FakeModel)
    monkeypatch.setattr(coreml_runtime, "why_not_here", lambda: None)
    monkeypatch.setattr(converters.coreml, "why_not_here", lambda: None)
    return FakeModel.loaded


@pytest.fixture
def convert(save, build):
    """The ONNX and its package."""

    def run(text, **options):
        model = save(text)
        result, package = build(model, **options)
        assert not [f for f in result["findings"] if f["severity"] == "error"]
        return model, package

    return run


@pytest.mark.parametrize(
    ("device", "unit"), [("cpu", "CPU_ONLY"), ("gpu", "CPU_AND_GPU"), ("npu", "CPU_AND_NE"), ("all", "ALL")]
)
def test_each_device_is_a_compute_unit(device, unit, convert, mac):
    _, package = convert(HALF)
    opened = open_runtime(package, RuntimeOptions(device=device))
    assert (opened.execution, unit in opened.engine) == ("real", True)
    assert [units for units, _ in mac] == [ct.ComputeUnit[unit]]


def test_arrays_go_in_and_come_out_in_the_models_own_form(convert, mac):
    model, package = convert(TYPES)
    feeds = {
        "x": np.arange(6, dtype=np.float32).reshape(2, 3), "kind": np.array([3, 4]), "flag": np.array(True),
        "scale": np.array(0.5, np.float32),
    }  # fmt: skip
    made = open_runtime(package).predict(feeds)
    given = mac[0][1][0]
    assert {name: (array.dtype.name, array.shape) for name, array in given.items()} == {
        "x": ("float32", (2, 3)), "kind": ("int32", (2,)), "flag": ("float32", (1,)), "scale": ("float32", (1,)),
    }  # fmt: skip
    for name, expected in Reference(model).predict(feeds).items():
        assert made[name].shape == expected.shape
        np.testing.assert_allclose(made[name], expected, rtol=1e-6)


def test_half_precision_arrays_keep_their_type(convert, mac):
    _, package = convert(HALF)
    made = open_runtime(package).predict({"x": np.array([[-1, 0.5, 2]], np.float16)})
    assert mac[0][1][0]["x"].dtype == np.float16
    assert made["y"].dtype == np.float16
    np.testing.assert_array_equal(made["y"], np.array([[0, 0.5, 2]], np.float16))


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_a_comparison_uses_core_ml_and_leaves_the_reference_on_the_cpu(device, convert, mac, tmp_path):
    labels = tmp_path / "l.json"
    labels.write_text(json.dumps(["a", "b", "c"]))
    model, package = convert(
        PICTURE, image_input="image:bgr", image_scale="1/255", image_bias="-0.4,-0.5,-0.6", class_labels=str(labels)
    )
    found = compare_job(str(model), str(package), RANDOM, options={"device": device})
    assert found["execution"] == "real"
    assert "CPUExecutionProvider" in found["engines"]["reference"]
    assert [(row["name"], row["passed"]) for row in found["outputs"]] == [("scores", True)]
    pictures = [given["image"] for given in mac[0][1]]
    assert [picture.size for picture in pictures] == [(6, 4)] * 3
    # The colours: a picture that is all red gives the class of red, which is the model's last channel in BGR.
    runtime = open_runtime(package)
    red = np.zeros((1, 3, 4, 6), np.uint8)
    red[:, 2] = 255
    runtime.predict({"image": runtime.door.images["image"].tensor(red)})
    assert mac[-1][1][-1]["image"].getpixel((0, 0)) == (255, 0, 0)


def test_a_wrong_core_ml_fails_the_comparison(convert, mac, monkeypatch):
    model, package = convert(HALF)
    right = FakeModel.predict
    monkeypatch.setattr(FakeModel, "predict", lambda self, given: {n: v + 1 for n, v in right(self, given).items()})
    found = compare_job(str(model), str(package), RANDOM)
    assert [row["passed"] for row in found["outputs"]] == [False]


def test_a_benchmark_gives_pixels_to_an_image_and_the_models_names(convert, mac, tmp_path):
    _, package = convert(PICTURE, image_input="image", image_scale="1/255")
    opened = open_runtime(package)
    data = {**RANDOM, "contract": dict(opened.contract)}
    prepared = prepare_job(str(package), [], data, 1, str(tmp_path))
    facts = child.load_job(str(package), prepared["files"], data, {"device": "gpu"})
    assert facts["execution"] == "real"
    assert "CPU_AND_GPU" in facts["engine"]
    assert child.block_job(0.01)["latencies_ms"]
    assert isinstance(mac[-1][1][0]["image"], Image.Image)


def test_the_manifest_tells_a_benchmark_the_preprocessing(tmp_path, monkeypatch):
    """`bench` makes pixels for a package without being told: its manifest holds the contract."""
    import deploykit
    from deploykit.api import bench as api

    model = tmp_path / "net.onnx"
    onnx.save(onnx.parser.parse_model(PICTURE), model)
    options = {"image_input": "image", "image_scale": "1/255", "device_check": False}
    deploykit.convert(model, to="coreml", output=tmp_path / "net.mlpackage", options=options)
    seen = {}
    monkeypatch.setattr(api, "run_bench", lambda subjects, request, **_: seen.update(request) or stop())

    class Stop(Exception):  # noqa: N818
        pass

    def stop():
        raise Stop

    with pytest.raises(Stop):
        deploykit.bench(model, tmp_path / "net.mlpackage")
    assert seen["contract"]["image"]["preprocess"]["scale"] == pytest.approx(1 / 255)


def test_a_package_with_a_state_is_refused_by_name(convert, mac, monkeypatch):
    _, package = convert(HALF)
    original = coreml_runtime.load
    from deploykit.converters.coreml import inspect

    opened = inspect.open_package(package)
    opened.spec.description.state.add().name = "memory"
    monkeypatch.setattr(inspect, "open_package", lambda _: opened)
    with pytest.raises(UnavailableError, match="keeps a state") as caught:
        original(package, RuntimeOptions())
    assert caught.value.code == "DK502"


def test_outputs_are_declared_as_the_model_has_them(convert, mac):
    _, package = convert(TYPES)
    assert open_runtime(package).outputs[2] == TensorSpec("single", "float32", ())
