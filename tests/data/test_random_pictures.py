"""Random data for inputs that take images: pixels through the preprocessing contract, in the size of the model."""

from __future__ import annotations

import numpy as np
import pytest

from deploykit.artifact import TensorSpec
from deploykit.data import InputContract, open_data
from deploykit.data.request import data_request, with_contract


def spec(*shape, dtype="float32"):
    return TensorSpec("image", dtype, shape)


def rule(**preprocess):
    return InputContract.model_validate({"image": {"preprocess": preprocess}})


def samples(tensor, contract, count=3, seed=0):
    data = open_data(f"random:{seed}", [tensor], purpose="parity", samples=count, contract=contract)
    return data, [sample.feeds["image"] for sample in data]


@pytest.mark.parametrize(
    ("tensor", "preprocess"),
    [
        (spec(2, 3, 5, 4), {"scale": "1/255", "mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.4]}),
        (spec(1, 5, 4, 3), {"scale": "1/127.5", "mean": 1, "layout": "nhwc", "color": "bgr"}),
        (spec(3, 5, 4), {"resize": 300, "crop": [224, 224], "scale": "1/255"}),
        (spec(1, 1, 5, 4), {"color": "gray", "mean": 10}),
        (spec(5, 4), {"color": "gray"}),
        (spec(1, 3, 5, 4, dtype="uint8"), {"color": "rgb"}),
    ],
)
def test_every_value_is_one_of_the_256_that_the_preprocessing_has(tensor, preprocess):
    data, arrays = samples(tensor, rule(**preprocess))
    assert [finding.code for finding in data.findings] == ["DK553"]
    contract = rule(**{key: value for key, value in preprocess.items() if key not in ("resize", "crop")})
    gray = preprocess.get("color") == "gray"
    levels = np.arange(256, dtype=np.uint8).reshape(16, 16)
    levels = levels if gray else levels[:, :, None].repeat(3, axis=2)
    known = contract.apply(levels, TensorSpec("image", tensor.dtype, (16, 16) if gray else (1, 3, 16, 16)))
    last = preprocess.get("layout") == "nhwc" and not gray
    for array in arrays:
        assert array.shape == tensor.shape
        assert array.dtype == tensor.dtype
        if gray:
            assert np.isin(array, known).all()
            continue
        channels = np.moveaxis(array, -1, 0) if last else np.moveaxis(array, -3, 0)
        allowed = np.moveaxis(known[0], -1, 0) if last else known[0]
        for made, values in zip(channels, allowed, strict=True):
            assert np.isin(made, values).all()
            assert len(np.unique(made)) > 1
    assert not np.array_equal(arrays[0], arrays[1])


def test_the_same_seed_gives_the_same_pixels_and_open_sizes_vary():
    tensor, contract = spec("batch", 3, "h", 8), rule(scale="1/255")
    first, second = samples(tensor, contract)[1], samples(tensor, contract)[1]
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)
    assert len({array.shape for array in first}) > 1


@pytest.mark.parametrize("tensor", [spec(1, 4, 5, 5), spec(1, 3), spec(7), spec(1, 3, 5, 5, 5)])
def test_what_has_not_the_shape_of_an_image_stays_as_it_was(tensor):
    data, arrays = samples(tensor, rule(scale="1/255"))
    assert data.findings == []
    assert all((array < 0).any() for array in arrays if array.size > 20)


def test_an_artifacts_preprocessing_joins_the_request_where_it_has_none():
    carried = {"image": {"preprocess": {"scale": 0.5}}}
    request = data_request(None, "parity", contract={"state": {"carry": "out"}})
    assert with_contract(request, carried)["contract"] == {"state": {"carry": "out"}, **carried}
    own = data_request(None, "parity", contract={"image": {"preprocess": {"scale": 2.0}}})
    assert with_contract(own, carried)["contract"] == {"image": {"preprocess": {"scale": 2.0}}}
    assert with_contract(data_request(None, "parity"), {}, {"state": {"carry": "out"}})["contract"] is None
