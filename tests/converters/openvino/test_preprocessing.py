"""Preprocessing and layout in the IR: equal to what every other command does, and unseen by them."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest

from deploykit.converters.openvino import preprocessing
from deploykit.converters.openvino.convert import convert_job
from deploykit.converters.openvino.inspect import describe
from deploykit.converters.openvino.taps import open_taps
from deploykit.data.contract import InputContract
from deploykit.errors import DataError, UsageError, VendorError
from deploykit.reference import Reference
from deploykit.runtime import RuntimeOptions, open_runtime

NET = """agraph (float[N,3,8,8] image) => (float[N,5,8,8] y) {
    [conv] c = Conv <pads = [1,1,1,1]> (image, w)
    [relu] y = Relu (c)
}"""
RULE = {"scale": 1 / 255, "mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.4]}


@pytest.fixture
def net(onnx_file):
    return onnx_file(NET, w=np.random.default_rng(5).normal(size=(5, 3, 3, 3)).astype(np.float32))


def convert(model, output, rule=None, **options):
    contract = None if rule is None else {"image": {"preprocess": rule}}
    return convert_job(str(model), str(output), options, {}, {}, "fp32", contract=contract)


def own(artifact, array):
    """What the IR itself gives, without deploykit."""
    return ov.Core().compile_model(str(artifact), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(array)[0]


@pytest.mark.parametrize("size", [(8, 8), (21, 13)], ids=["as large as the model", "larger"])
@pytest.mark.parametrize("color", ["rgb", "bgr"])
def test_pictures_give_what_the_contract_gives(net, tmp_path, size, color):
    rule = {**RULE, "color": color, "resize": [8, 8]}
    convert(net, tmp_path / "m.xml", rule, preprocess="true")
    pictures = np.random.default_rng(1).integers(0, 256, (3, *size, 3), dtype=np.uint8)
    reference = Reference(net)
    contract = InputContract.model_validate({"image": {"preprocess": rule}})
    expected = reference.predict({"image": contract.apply(pictures, reference.inputs[0])})["y"]
    found = own(tmp_path / "m.xml", pictures)
    # A resize may round to the neighbouring pixel value, which nine products of each channel spread.
    step = 27 * 3 / 255 / 0.2 if size != (8, 8) else 0
    assert np.abs(found - expected).max() <= step + 1e-4 * np.abs(expected).max()
    assert found.shape == expected.shape


def test_commands_keep_giving_the_models_own_tensor(net, tmp_path):
    made = convert(net, tmp_path / "m.xml", {**RULE, "color": "bgr"}, preprocess="true")
    assert made["contract"] == {"image": {"preprocess": {**RULE, "color": "bgr", "layout": "nchw"}}}
    assert [finding["code"] for finding in made["findings"]] == ["DK529"]
    runtime = open_runtime(tmp_path / "m.xml")
    assert [spec.as_dict() for spec in runtime.inputs] == made["inputs"]
    assert made["inputs"] == [{"name": "image", "dtype": "float32", "shape": ["N", 3, 8, 8]}]
    pixels = np.random.default_rng(2).integers(0, 256, (2, 3, 8, 8)).astype(np.float32)
    column = (1, 3, 1, 1)
    tensor = (pixels / 255 - np.reshape(RULE["mean"], column)) / np.reshape(RULE["std"], column)
    feeds = {"image": tensor.astype(np.float32)}
    expected = Reference(net).predict(feeds)["y"]
    assert np.allclose(runtime.predict(feeds)["y"], expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(DataError) as caught:
        runtime.predict({"image": np.full((1, 3, 8, 8), 0.123, np.float32)})
    assert caught.value.code == "DK552"


def test_tensors_inside_are_read_behind_the_preprocessing(net, tmp_path):
    convert(net, tmp_path / "m.xml", layout="NHWC")
    feeds = {"image": np.random.default_rng(3).normal(size=(1, 3, 8, 8)).astype(np.float32)}
    taps = open_taps(tmp_path / "m.xml", RuntimeOptions())
    found = taps.find(["c"])
    assert np.allclose(
        taps.read(feeds, [found["c"]])[found["c"]].clip(0), Reference(net).predict(feeds)["y"], atol=1e-4
    )


def test_gray_pictures_have_one_channel(onnx_file, tmp_path):
    model = onnx_file("agraph (float[N,4,4,1] image) => (float[N,4,4,1] y) { y = Neg (image) }")
    convert(model, tmp_path / "m.xml", {"scale": 1 / 255, "color": "gray", "layout": "nhwc"}, preprocess="true")
    picture = np.arange(16, dtype=np.uint8).reshape(1, 4, 4, 1)
    assert np.allclose(own(tmp_path / "m.xml", picture), picture.astype(np.float32) / -255, atol=1e-6)


def test_channels_last_of_inputs_and_outputs(net, tmp_path):
    convert(net, tmp_path / "m.xml", layout="NHWC,y:NHWC")
    x = np.random.default_rng(4).normal(size=(2, 3, 8, 8)).astype(np.float32)
    expected = Reference(net).predict({"image": x})["y"]
    found = own(tmp_path / "m.xml", np.ascontiguousarray(x.transpose(0, 2, 3, 1)))
    assert np.allclose(found.transpose(0, 3, 1, 2), expected, atol=1e-4)
    assert np.allclose(open_runtime(tmp_path / "m.xml").predict({"image": x})["y"], expected, atol=1e-4)
    assert describe(tmp_path / "m.xml")["outputs"] == [{"name": "y", "dtype": "float32", "shape": ["N", 5, 8, 8]}]


def test_what_stays_the_callers_is_said(net, tmp_path):
    made = convert(net, tmp_path / "m.xml", {**RULE, "resize": [10, 10], "crop": [8, 8]}, preprocess="true")
    assert "not resize and crop" in made["findings"][0]["message"]
    assert "of the model's size" in made["findings"][0]["message"]


@pytest.mark.parametrize(
    ("options", "rule", "said"),
    [
        ({"preprocess": "true"}, None, "no input has a preprocessing"),
        ({"preprocess": "true"}, {"layout": "nhwc"}, "8 channels where a rgb picture has 3"),
        ({"preprocess": "true"}, {"mean": [1.0, 2.0]}, "mean has 2 numbers"),
        ({"preprocess": "perhaps"}, None, "neither true nor false"),
        ({"layout": "NCHW"}, None, "is not NHWC"),
        ({"layout": "w:NHWC"}, None, "is not NHWC"),
    ],
)
def test_what_cannot_be_done_is_refused(net, tmp_path, options, rule, said):
    with pytest.raises(UsageError, match=said):
        convert(net, tmp_path / "m.xml", rule, **options)


def test_a_wrong_preprocessing_of_openvino_would_be_found(net, tmp_path, monkeypatch):
    monkeypatch.setattr(preprocessing, "_a_channel", lambda numbers, channels: [0.7] * channels)
    with pytest.raises(VendorError, match="differs from the contract") as caught:
        convert(net, tmp_path / "m.xml", RULE, preprocess="true")
    assert caught.value.code == "DK588"
