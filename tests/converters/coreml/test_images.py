"""Image inputs: pixels through the package against preprocessed tensors through the ONNX, and what is refused."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import onnx
import pytest

from deploykit.artifact import TensorSpec
from deploykit.converters.coreml.runtime import SimulatedRuntime
from deploykit.converters.images import ImageInput
from deploykit.data.contract import InputContract, PreprocessSpec
from deploykit.errors import DataError, UsageError
from deploykit.reference import Reference

IMAGENET = {"scale": "1/255", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}


def net(kind="float", shape="1,3,8,6", body="y = Mul (x, two)", two="2", out=None):
    return f"""
<ir_version: 9, opset_import: ["" : 19]>
net ({kind}[{shape}] x) => ({kind}[{out or shape}] y)
<{kind}[1] two = {{{two}}}>
{{ {body} }}"""


def contract(**rule):
    return {"x": {"preprocess": rule}}


@pytest.fixture(scope="module")
def reader():
    """The tests' own reader of MIL, which shares no code with the interpreter or with what images are made by."""
    file = Path(__file__).with_name("mil_semantics.py")
    spec = importlib.util.spec_from_file_location("mil_semantics", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def pictures():
    """Random pictures [height, width, 3], red first, with the extremes in them."""
    made = np.random.default_rng(0).integers(0, 256, (3, 8, 6, 3), dtype=np.uint8)
    made[:, 0, 0], made[:, 0, 1] = 0, 255
    return made


CASES = {
    "one scale": ("1,3,8,6", {"scale": "1/255"}),
    "scale and bias": ("1,3,8,6", {"scale": "1/127.5", "mean": 1}),
    "a std a channel": ("1,3,8,6", IMAGENET),
    "one std": ("1,3,8,6", {"scale": "1/255", "mean": [0.5, 0.4, 0.3], "std": 0.25}),
    "bgr": ("1,3,8,6", {"mean": [103.94, 116.78, 123.68], "std": 58.8, "color": "bgr"}),
    "channels last": ("1,8,6,3", {**IMAGENET, "layout": "nhwc"}),
    "bgr, last": ("1,8,6,3", {**IMAGENET, "layout": "nhwc", "color": "bgr"}),
    "gray": ("1,1,8,6", {"scale": "1/255", "mean": 0.1307, "std": 0.3081, "color": "gray"}),
    "gray, last": ("1,8,6,1", {"scale": "1/255", "color": "gray", "layout": "nhwc"}),
    "without a batch": ("3,8,6", IMAGENET),
    "last, without a batch": ("8,6,3", {**IMAGENET, "layout": "nhwc"}),
    "gray of rank 2": ("8,6", {"scale": "1/255", "color": "gray"}),
    "raw": ("1,3,8,6", {"color": "rgb"}),
}


@pytest.mark.parametrize("case", CASES)
def test_pixels_give_what_the_model_gives_for_the_preprocessed_tensor(case, build, save, reader, pictures):
    shape, rule = CASES[case]
    model = save(net(shape=shape))
    result, package = build(model, contract=contract(**rule), image_input="x")
    assert [f["code"] for f in result["findings"]] == ["DK529"]
    spec = TensorSpec("x", "float32", tuple(map(int, shape.split(","))))
    preprocessing = InputContract.model_validate(contract(**rule))
    assert result["inputs"] == [spec.as_dict()]
    runtime, reference = SimulatedRuntime(package), Reference(model)
    for picture in pictures:
        tensor = preprocessing.apply(picture, spec)
        expected = reference.predict({"x": tensor})["y"]
        limit = {"rtol": 1e-5, "atol": 1e-5 * np.abs(expected).max()}
        np.testing.assert_allclose(runtime.predict({"x": tensor})["y"], expected, **limit)
        # What a phone gives: the pixels in the order of the package's colours.
        raw = InputContract.model_validate(contract(color=rule.get("color", "rgb"))).apply(
            picture, TensorSpec("x", "float32", (1, 1 if rule.get("color") == "gray" else 3, 8, 6))
        )
        np.testing.assert_allclose(reader.run_package(package, {"x": raw})["y"], expected, **limit)


def test_the_package_declares_an_image_of_the_contract(build, save):
    import coremltools as ct

    _, package = build(save(net()), contract=contract(**IMAGENET, color="bgr"), image_input="true")
    description = ct.models.MLModel(str(package), skip_model_load=True).get_spec().description
    image = description.input[0].type.imageType
    assert (image.width, image.height, image.colorSpace) == (6, 8, 30)  # ImageFeatureType.BGR


@pytest.mark.parametrize(("kind", "dtype"), [("float16", np.float16), ("uint8", np.uint8)])
def test_other_types_than_float32_are_cast_behind_the_pixels(kind, dtype, build, save, pictures):
    rule = {"scale": "1/255", "mean": 0.5} if kind == "float16" else {"color": "rgb"}
    body = "y = Identity (x)" if kind == "uint8" else "y = Mul (x, two)"
    model = save(net(kind, body=body))
    result, package = build(model, contract=contract(**rule), image_input="x")
    assert not [f for f in result["findings"] if f["severity"] == "error"]
    spec = TensorSpec("x", np.dtype(dtype).name, (1, 3, 8, 6))
    tensor = InputContract.model_validate(contract(**rule)).apply(pictures[0], spec)
    made = SimulatedRuntime(package).predict({"x": tensor})["y"]
    expected = Reference(model).predict({"x": tensor})["y"].astype(np.float64)
    np.testing.assert_allclose(made.astype(np.float64), expected, atol=1e-3 if kind == "float16" else 0)


def test_sizes_may_vary_in_ranges_or_sets(build, save, pictures):
    model = save(net(shape="batch,h,w,3"))
    ranges = {"batch": [1, 1], "h": [4, 16], "w": [4, 16]}
    rule = contract(**IMAGENET, layout="nhwc")
    result, package = build(model, dims=ranges, contract=rule, image_input="x")
    assert not [f for f in result["findings"] if f["severity"] == "error"]
    assert result["metrics"]["images"]["x"]["size"] == "4..16 x 4..16"
    runtime = SimulatedRuntime(package)
    assert runtime.bounds == {"x": [[1, 1], [4, 16], [4, 16], [3, 3]]}
    preprocessing = InputContract.model_validate(rule)
    tensor = preprocessing.apply(pictures[0], TensorSpec("x", "float32", (1, "h", "w", 3)))
    expected = Reference(model).predict({"x": tensor})["y"]
    np.testing.assert_allclose(runtime.predict({"x": tensor})["y"], expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(DataError, match="does not take") as caught:
        runtime.predict({"x": np.zeros((1, 3, 6, 3), np.float32)})
    assert caught.value.code == "DK547"
    sets = {"batch": [1, 1], "h": [8, 16, 8, 16], "w": [6, 6]}
    result, package = build(model, dims=sets, contract=rule, image_input="x", output="s.mlpackage")
    assert not [f for f in result["findings"] if f["severity"] == "error"]
    assert result["metrics"]["images"]["x"]["size"] == "8 x 6, 16 x 6"
    runtime = SimulatedRuntime(package)
    np.testing.assert_allclose(runtime.predict({"x": tensor})["y"], expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(DataError, match=r"\[1, 9, 6, 3\]"):
        runtime.predict({"x": np.zeros((1, 9, 6, 3), np.float32)})


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"image_scale": "1/255"}, {"scale": 1 / 255, "color": "rgb", "layout": "nchw"}),
        ({"image_scale": "1/127.5", "image_bias": "-1"}, {"scale": 1 / 127.5, "mean": [1.0], "color": "rgb"}),
        ({"image_bias": "-1,-2,-3", "image_input": "x:bgr"}, {"mean": [1.0, 2.0, 3.0], "color": "bgr"}),
        ({"image_scale": 0.5, "image_bias": [-1, -2, -3]}, {"scale": 0.5, "mean": [1.0, 2.0, 3.0]}),
    ],
)
def test_options_say_scale_bias_and_colour_without_a_contract(options, wanted, build, save):
    result, _ = build(save(net()), **{"image_input": "x", **options})
    made = result["contract"]["x"]["preprocess"]
    assert {name: made[name] for name in wanted} == wanted


REFUSED = {
    "nobody knows what": (net(), {}, "DK550", "inputs.x.preprocess"),
    "takes 2 images": (net(shape="2,3,8,6"), {"image_scale": "1"}, "DK550", "batch of 1"),
    "takes batch images": (net(shape="batch,3,8,6"), {"image_scale": "1"}, "DK550", "--dim batch=1"),
    "its rank is 5": (net(shape="1,1,3,8,6"), {"image_scale": "1"}, "DK550", "leave"),
    "has 4 channels": (net(shape="1,4,8,6"), {"image_scale": "1"}, "DK550", "layout"),
    "do not become bool": (net("bool", body="y = Identity (x)", two="1"), {"image_scale": "1"}, "DK550", "leave"),
    "first or last": (net(shape="1,3,8,3"), {"image_scale": "1"}, "DK550", "x:nhwc"),
    "the input takes integers": (net("uint8", body="y = Identity (x)"), {"image_scale": "1/255"}, "DK550", "=1"),
    "a scale of 0": (net(), {"image_scale": "0"}, "DK550", "1/255"),
    "2 numbers for 3": (net(), {"image_bias": "1,2"}, "DK550", "one a channel"),
    "no input 'z'": (net(), {"image_input": "z", "image_scale": "1"}, "DK527", "NAME"),
    "'ycc'?": (net(), {"image_input": "x:ycc", "image_scale": "1"}, "DK527", "NAME"),
    "none is named": (net(), {"image_input": None, "image_scale": "1"}, "DK550", "image_input=NAME"),
    "number or a fraction": (net(), {"image_scale": "a"}, "DK527", "1/255"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_be_an_image_is_refused_with_the_way(why, build, save):
    text, options, code, hint = REFUSED[why]
    dims = {"batch": [1, 4]} if "batch" in text else None
    with pytest.raises(UsageError) as caught:
        build(save(text), dims=dims, **{"image_input": "x", **options})
    assert caught.value.code == code
    assert why in caught.value.message
    assert hint in caught.value.hint


def test_two_answers_are_refused(build, save):
    with pytest.raises(UsageError, match="says another") as caught:
        build(save(net()), contract=contract(**IMAGENET), image_input="x", image_scale="1")
    assert caught.value.code == "DK550"
    with pytest.raises(UsageError, match="is rgb in its preprocessing, and bgr"):
        build(save(net()), contract=contract(**IMAGENET), image_input="x:bgr")


def test_a_contract_in_the_models_manifest_is_taken(build, save, tmp_path):
    import dataclasses

    from deploykit import graph
    from deploykit.artifact import write_manifest

    model = save(net())
    made = dataclasses.replace(graph.describe(model), options={"calibration": {"contract": contract(**IMAGENET)}})
    write_manifest(made)
    result, _ = build(model, image_input="x")
    assert result["contract"]["x"]["preprocess"]["std"] == [0.229, 0.224, 0.225]
    # A manifest of another file is not one.
    onnx.save(onnx.parser.parse_model(net(two="3")), model)
    with pytest.raises(UsageError, match="has no preprocessing"):
        build(model, image_input="x")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("case", ["a std a channel", "scale and bias", "bgr, last", "gray", "raw"])
def test_every_pixel_value_comes_back_from_its_tensor(case, dtype):
    shape, rule = CASES[case]
    spec = tuple(map(int, shape.split(",")))
    image = ImageInput("x", dtype, spec, PreprocessSpec.model_validate(rule))
    pixels = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16).repeat(image.channels, axis=1)
    tensor = image.tensor(pixels)
    np.testing.assert_array_equal(image.pixels(tensor), pixels)
    # One rounding beside is the same picture, a fifth of a level is none.
    near = tensor + np.abs(tensor) * np.finfo(dtype).eps
    np.testing.assert_array_equal(image.pixels(near.astype(dtype)), pixels)
    if dtype == "float32":
        level = abs(
            float(image.tensor(pixels[:, :, :1, :2]).ravel()[0] - image.tensor(pixels[:, :, :1, 1:3]).ravel()[0])
        )
        with pytest.raises(DataError, match="is no pixel value") as caught:
            image.pixels((tensor + level / 5).astype(dtype))
        assert caught.value.code == "DK552"


@pytest.mark.parametrize("value", [np.nan, np.inf, -5.0, 260.0])
def test_what_no_picture_holds_is_refused(value):
    image = ImageInput("x", "float32", (1, 3, 2, 2), PreprocessSpec())
    tensor = np.zeros((1, 3, 2, 2), np.float32)
    tensor[0, 1, 0, 1] = value
    with pytest.raises(DataError, match=r"at \[0, 1, 0, 1\] is no pixel value: 1 of 12"):
        image.pixels(tensor)


def test_an_image_package_made_elsewhere_takes_pixels(tmp_path, save):
    """coremltools' own way, without what deploykit keeps in a package."""
    import coremltools as ct
    from coremltools.converters.mil.mil import Builder as mb  # noqa: N813

    @mb.program(input_specs=[mb.TensorSpec(shape=(1, 3, 4, 4))], opset_version=ct.target.iOS17)
    def program(x):
        return mb.mul(x=x, y=2.0, name="y")

    image = ct.ImageType("x", (1, 3, 4, 4), scale=0.5, bias=[1, 2, 3], color_layout=ct.colorlayout.BGR)
    image.channel_first = True
    made = ct.convert(program, source="milinternal", inputs=[image], convert_to="mlprogram", skip_model_load=True,
                      minimum_deployment_target=ct.target.iOS17, compute_precision=ct.precision.FLOAT32)  # fmt: skip
    package = tmp_path / "foreign.mlpackage"
    made.save(str(package))
    runtime = SimulatedRuntime(package)
    assert runtime.inputs == (TensorSpec("x", "uint8", (1, 3, 4, 4)),)
    pixels = np.arange(48, dtype=np.uint8).reshape(1, 3, 4, 4)
    wanted = 2 * (pixels * 0.5 + np.array([1, 2, 3]).reshape(1, 3, 1, 1))
    np.testing.assert_allclose(runtime.predict({"x": pixels})["y"], wanted, rtol=1e-6)


def test_a_profile_fixes_sizes_that_have_no_name(build, save, pictures):
    """As published models have them: height and width without a name, and -1 where a tool did not know."""
    model = onnx.parser.parse_model(net(shape="batch,3,h,w", body="m = Mul (x, two) y = Relu (m)", out="other,3,a,b"))
    for axis in (2, 3):
        model.graph.input[0].type.tensor_type.shape.dim[axis].ClearField("dim_param")
    inside = onnx.helper.make_tensor_value_info("m", onnx.TensorProto.FLOAT, ["batch", 3, "a", "b"])
    inside.type.tensor_type.shape.dim[0].dim_value = -1
    model.graph.value_info.append(inside)
    path = save(model)
    sizes = [[1, 3, 8, 6]] * 3
    result, package = build(path, profiles={"x": sizes}, contract=contract(**IMAGENET), image_input="x")
    assert not [f for f in result["findings"] if f["severity"] == "error"]
    assert result["inputs"] == [TensorSpec("x", "float32", (1, 3, 8, 6)).as_dict()]
    runtime = SimulatedRuntime(package)
    assert runtime.inputs == (TensorSpec("x", "float32", (1, 3, 8, 6)),)
    tensor = InputContract.model_validate(contract(**IMAGENET)).apply(pictures[0], runtime.inputs[0])
    expected = Reference(path).predict({"x": tensor})["y"]
    np.testing.assert_allclose(runtime.predict({"x": tensor})["y"], expected, rtol=1e-5, atol=1e-5)
