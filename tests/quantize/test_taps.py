"""Calibration looks at as few tensors as it can, and at every one that a plan of any target reads."""

import numpy as np
import pytest
from quantize_models import AFFINE, SYMMETRIC, onnx_text

from deploykit.errors import ModelError
from deploykit.quantize.plan import make_plan, observable
from deploykit.quantize.prepare import load_float
from deploykit.quantize.taps import sources_of
from deploykit.target import get_target, target_names

SCHEMES = [scheme for name in target_names() if (scheme := get_target(name).scheme) is not None]
MODELS = ("digits/digits_cnn.onnx", "ppocr_v4/rec.onnx", "ppocr_v4/det.onnx", "silero_vad/silero_vad.onnx")
NET = """g (float[n,3,8,8] x) => (float[n,4,8,8] y, float[n,4,8,8] z) {
    a = Conv <pads=[1,1,1,1]> (x, w)  r = Relu (a)  m = MaxPool <kernel_shape=[1,1]> (r)  c = Conv (m, v)
    s = Add (c, r)  b = Add (s, o)  k = Concat <axis=1> (s, r)  y = Conv (k, u)  t = Transpose <perm=[0,1,3,2]> (b)
    z = Conv (t, v)
}"""


@pytest.fixture
def net(tmp_path):
    rng = np.random.default_rng(0)
    shapes = {"w": (4, 3, 3, 3), "v": (4, 4, 1, 1), "u": (4, 8, 1, 1), "o": (1, 4, 1, 1)}
    weights = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return load_float(onnx_text(NET, tmp_path / "m.onnx", **weights))[0]


def read_by_plans(model):
    schemes = [SYMMETRIC, AFFINE, *SCHEMES]
    return {value.name for scheme in schemes for value in make_plan(model, scheme).readers}


def test_what_plans_read_is_observed_and_the_inside_of_a_kernel_is_not(net):
    names = observable(net)
    assert read_by_plans(net) <= set(names)
    assert "a" not in names  # the convolution's kernel writes r
    assert {"x", "r", "m", "c", "s", "k", "t"} <= set(names)


@pytest.mark.parametrize("name", MODELS)
def test_what_plans_read_of_published_models_is_observed(shared_model, name):
    model = load_float(shared_model(name))[0]
    assert read_by_plans(model) <= set(observable(model))


def test_what_plans_read_of_every_case_is_observed(shared):
    checked = 0
    for path in sorted((shared / "cases").glob("*.onnx")):
        try:
            model = load_float(path)[0]
        except ModelError:  # quantized, damaged or hostile: refused before anything is calibrated
            continue
        assert read_by_plans(model) <= set(observable(model)), path.name
        checked += 1
    assert checked > 15


def test_a_view_of_a_view_of_an_input_is_the_input(net):
    sources = sources_of(net, ["x", "r", "t", "k"])
    assert sources == {"x": "x", "r": "r", "t": "b", "k": "k"}
