"""A package with an image input and class labels through the commands: convert, validate, inspect, the bytes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from PIL import Image

import deploykit
from deploykit import io
from deploykit.errors import DataError

pytestmark = pytest.mark.usefixtures("pool")
NET = """
<ir_version: 9, opset_import: ["" : 19]>
net (float[batch,3,8,6] image) => (float[batch,3] scores)
<int64[2] axes = {2,3}, float[3,3] w = {9,1,0,0,8,1,1,0,9}>
{ p = ReduceMean <keepdims=0> (image, axes)
  m = MatMul (p, w)
  scores = Softmax (m) }"""
CONTRACT = {
    "image": {
        "preprocess": {
            "resize": [8, 6], "scale": "1/255", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225],
        }
    }
}  # fmt: skip


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "net.onnx"
    onnx.save(onnx.parser.parse_model(NET), path)
    return path


@pytest.fixture
def photos(tmp_path):
    """A folder a class, of pictures in which that class's colour is strong."""
    rng = np.random.default_rng(0)
    for place, name in enumerate(("red", "green", "blue")):
        (tmp_path / "photos" / f"{place} {name}").mkdir(parents=True)
        for number in range(2):
            pixels = rng.integers(0, 60, (20, 30, 3), dtype=np.uint8)
            pixels[:, :, place] += 150
            Image.fromarray(pixels).save(tmp_path / "photos" / f"{place} {name}" / f"{number}.png")
    return tmp_path / "photos"


@pytest.fixture
def package(model, photos, tmp_path):
    (tmp_path / "labels.txt").write_text("red\ngreen\nblue\n")

    def convert(name="net"):
        output = tmp_path / f"{name}.mlpackage"
        report = deploykit.convert(
            model, to="coreml@iOS26", output=output, dims=["batch=1"], data=str(photos), contract=CONTRACT,
            options={"image_input": "image", "class_labels": str(tmp_path / "labels.txt"), "author": "A"},
        )  # fmt: skip
        assert not report.failed, report.findings
        return report, output

    return convert


def test_a_package_is_proven_and_scored_on_pictures(package, model, photos):
    report, made = package()
    parity = report.metrics["parity"]["parent"]
    assert (parity["samples"], parity["outputs"][0]["passed"]) == (6, True)
    # What the package was made with is known from its manifest: nobody has to say it again.
    found = deploykit.validate(model, made, data=str(photos), eval=str(photos))
    assert not found.failed
    assert found.metrics["outputs"][0]["sqnr_db"] > 100
    assert (found.metrics["accuracy"]["reference"], found.metrics["accuracy"]["candidate"]) == (100.0, 100.0)


def test_data_that_is_no_picture_is_refused(package, model, tmp_path):
    _, made = package()
    np.savez(tmp_path / "floats.npz", image=np.random.default_rng(0).normal(size=(2, 3, 8, 6)).astype(np.float32))
    with pytest.raises(DataError, match="is no pixel value") as caught:
        deploykit.validate(model, made, data=str(tmp_path / "floats.npz"))
    assert caught.value.code == "DK552"


def test_inspect_tells_images_classes_and_words(package):
    _, made = package()
    found = deploykit.inspect(made).metrics
    assert found["images"]["image"] == {
        "color": "rgb", "size": "8 x 6",
        "preprocess": {"resize": [8, 6], "scale": pytest.approx(1 / 255), "mean": [0.485, 0.456, 0.406],
                       "std": [0.229, 0.224, 0.225]},
    }  # fmt: skip
    assert found["classifier"] == {
        "label": "classLabel", "values": "classLabel_probs", "output": "scores", "classes": 3,
        "first": ["red", "green", "blue"],
    }  # fmt: skip
    assert found["metadata"] == {"author": "A"}


def test_the_same_options_give_the_same_bytes(package):
    assert len({io.digest([package(name)[1] / "Data"]) for name in "ab"}) == 1
