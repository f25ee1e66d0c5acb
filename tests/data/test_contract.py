"""The preprocessing contract against independent computations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError

from deploykit.artifact import TensorSpec
from deploykit.data import InputContract, PreprocessSpec
from deploykit.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

NCHW = TensorSpec("image", "float32", ("n", 3, 4, 6))
NHWC = TensorSpec("image", "float32", ("n", 4, 6, 3))


def contract(**rule: object) -> InputContract:
    return InputContract.model_validate({"image": {"preprocess": rule}})


@pytest.fixture
def picture() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)


def test_scale_mean_and_std_by_hand(picture: np.ndarray) -> None:
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    found = contract(scale="1/255", mean=mean, std=std).apply(picture, NCHW)
    assert found.shape == (1, 3, 4, 6)
    assert found.dtype == np.float32
    for channel in range(3):
        expected = (picture[:, :, channel].astype(np.float64) / 255 - mean[channel]) / std[channel]
        np.testing.assert_allclose(found[0, channel], expected, rtol=1e-5, atol=1e-6)


def test_layout_and_colour_order(picture: np.ndarray) -> None:
    np.testing.assert_array_equal(contract(layout="nhwc").apply(picture, NHWC)[0], picture)
    np.testing.assert_array_equal(contract(layout="nhwc", color="bgr").apply(picture, NHWC)[0], picture[:, :, ::-1])
    np.testing.assert_array_equal(contract(color="bgr").apply(picture, NCHW)[0, 0], picture[:, :, 2])


def test_gray_is_rec_601_luma(picture: np.ndarray) -> None:
    spec = TensorSpec("image", "float32", ("n", 1, 4, 6))
    found = contract(color="gray").apply(picture, spec)
    np.testing.assert_allclose(found[0, 0], picture @ [0.299, 0.587, 0.114], atol=1)
    assert contract(color="gray").apply(picture, TensorSpec("image", "float32", (4, 6))).shape == (4, 6)


def test_a_gray_image_has_three_equal_channels_for_a_colour_model() -> None:
    gray = np.arange(24, dtype=np.uint8).reshape(4, 6)
    for given in (gray, gray[:, :, None]):
        found = contract().apply(given, NCHW)
        np.testing.assert_array_equal(found[0], np.stack([gray] * 3))


def test_resize_by_an_exact_factor_is_a_mean_of_triangles() -> None:
    # A constant image stays constant, and a linear ramp stays linear away from the borders (bilinear, antialiased).
    ramp = np.repeat(np.arange(0, 240, 4, dtype=np.uint8)[None, :], 60, axis=0)
    found = contract(resize=[30, 30]).apply(ramp, TensorSpec("image", "float32", ("n", 3, 30, 30)))[0, 0]
    expected = np.array([(8 * column) + 2 for column in range(30)])  # the centre of two columns, 4 apart
    np.testing.assert_allclose(found[15, 2:-2], expected[2:-2], atol=1)


def test_one_number_resizes_the_shorter_side() -> None:
    image = np.zeros((40, 60, 3), np.uint8)
    assert contract(resize=20).apply(image, NCHW).shape == (1, 3, 20, 30)


def test_the_crop_is_central() -> None:
    image = np.arange(10 * 12, dtype=np.uint8).reshape(10, 12)
    found = contract(crop=[4, 6], color="gray").apply(image, TensorSpec("image", "float32", ("n", 1, 4, 6)))
    np.testing.assert_array_equal(found[0, 0], image[3:7, 3:9])


def test_torchvision_order_of_resize_and_crop(real: Path) -> None:
    file = real / "images" / "astronaut.png"
    spec = TensorSpec("image", "float32", ("n", 3, 24, 24))
    found = contract(resize=[32, 32], crop=[24, 24], scale="1/255").apply(file, spec)
    with Image.open(file) as opened:
        small = np.asarray(opened.convert("RGB").resize((32, 32), Image.Resampling.BILINEAR))
    expected = small[4:28, 4:28].transpose(2, 0, 1)[None] / 255.0
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_batch_is_prepared_image_by_image(picture: np.ndarray) -> None:
    batch = np.stack([picture, 255 - picture])
    found = contract(scale=2).apply(batch, NCHW)
    np.testing.assert_array_equal(found, batch.transpose(0, 3, 1, 2) * np.float32(2))


def test_an_integer_input_takes_pixels_as_they_are(picture: np.ndarray) -> None:
    spec = TensorSpec("image", "uint8", ("n", 4, 6, 3))
    found = contract(layout="nhwc").apply(picture, spec)
    assert found.dtype == np.uint8
    with pytest.raises(DataError, match="make fractions"):
        contract(scale="1/255", layout="nhwc").apply(picture, spec)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"crop": [5, 6]}, "larger than the image of 4 x 6"),
        ({"mean": [1, 2]}, "mean has 2 numbers for 3 channels"),
        ({"std": [1, 2]}, "std has 2 numbers"),
    ],
)
def test_a_contract_that_does_not_fit_the_image_is_refused(
    picture: np.ndarray, rule: dict[str, object], said: str
) -> None:
    with pytest.raises(DataError, match=said) as caught:
        contract(**rule).apply(picture, NCHW)
    assert caught.value.code == "DK310"


def test_an_input_without_preprocessing_takes_no_images(picture: np.ndarray) -> None:
    with pytest.raises(DataError, match="no preprocessing"):
        InputContract({}).apply(picture, NCHW)


def test_an_unreadable_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n and then nothing")
    with pytest.raises(DataError, match=r"broken\.png") as caught:
        contract().apply(tmp_path / "broken.png", NCHW)
    assert caught.value.code == "DK311"


@pytest.mark.parametrize(
    "rule",
    [
        {"sclae": 1},
        {"scale": "1/0"},
        {"scale": "a/b"},
        {"resize": [0, 4]},
        {"crop": [4]},
        {"std": 0},
        {"mean": []},
        {"color": "cmyk"},
        {"layout": "chw"},
        {"scale": float("nan")},
    ],
)
def test_wrong_rules_are_refused(rule: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        PreprocessSpec.model_validate(rule)


def test_the_json_form_is_read_back() -> None:
    written = contract(resize=[8, 8], scale="1/255", mean=0.5, std=[0.5]).as_dict()
    assert written["image"]["preprocess"]["mean"] == [0.5]
    assert InputContract.model_validate(written).as_dict() == written


def test_carried_inputs_are_named_by_their_output() -> None:
    rules = InputContract.model_validate({"state": {"carry": "stateN"}, "image": {"preprocess": {}}})
    assert rules.carry == {"state": "stateN"}
    assert rules.prepares("image")
    assert not rules.prepares("state")
