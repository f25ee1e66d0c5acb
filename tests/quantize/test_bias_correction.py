"""Bias correction takes out what is systematic, and only that."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from quantize_models import AFFINE, SYMMETRIC, onnx_text, ranges_of, run, sqnr_db
from test_smoothing import replay_of

from deploykit import graph
from deploykit.quantize.bias_correction import correct_biases, mean_errors
from deploykit.quantize.plan import make_plan
from deploykit.quantize.prepare import load_float
from deploykit.quantize.qdq import Inserter, shared_parameters

RNG = np.random.default_rng(2)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


LAYERS = {
    "Conv": "g (float[2,4,6,6] x) => (float[2,5,4,4] y) { [n] y = Conv (x, w) }",
    "Conv_with_bias": "g (float[2,4,6,6] x) => (float[2,5,4,4] y) { [n] y = Conv (x, w, b) }",
    "ConvTranspose": "g (float[2,4,24,24] x) => (float[2,5,26,26] y) { [n] y = ConvTranspose (x, w) }",
    "Gemm": "g (float[9,16] x) => (float[9,5] y) { [n] y = Gemm <beta=0.5> (x, w, b) }",
    "MatMul": "g (float[2,9,16] x) => (float[2,9,5] y) { [n] m = MatMul (x, w) [add] y = Add (b, m) }",
}
SHAPES = {"ConvTranspose": (4, 5, 3, 3), "Gemm": (16, 5), "MatMul": (16, 5)}


def prepared(tmp_path, name):
    weight = normal(*SHAPES.get(name, (5, 4, 3, 3)))
    extra = {"b": normal(5)} if "b)" in LAYERS[name] or "(b," in LAYERS[name] else {}
    path = onnx_text(LAYERS[name], tmp_path / "m.onnx", w=weight, **extra)
    inputs, _ = graph.interface(graph.load(path))
    # A mean far from 0: rounding the weights then moves the outputs by a constant.
    feeds = [{"x": 10 + 0.1 * normal(*inputs[0].shape)} for _ in range(4)]
    return path, feeds


def outputs(path, feeds, scheme, *, correct):
    model, _ = load_float(path)
    ranges = ranges_of(model, feeds)
    plan = make_plan(model, scheme)
    parameters = shared_parameters(plan, ranges, scheme)
    if correct:
        errors = mean_errors(load_float(path)[0], plan, parameters, scheme, replay_of(feeds))
        assert correct_biases(model, errors) == ["n"]
    Inserter(model, plan, scheme, parameters).run()
    out = path.with_name(f"q{correct}.onnx")
    graph.save(graph.infer_shapes(model), out)
    return np.stack([run(out, feed, optimize=False)["y"] for feed in feeds])


@pytest.mark.parametrize("scheme", [SYMMETRIC, AFFINE])
@pytest.mark.parametrize("name", LAYERS)
def test_the_mean_of_each_channel_is_that_of_float(tmp_path, name, scheme):
    path, feeds = prepared(tmp_path, name)
    expected = np.stack([run(path, feed, optimize=False)["y"] for feed in feeds])
    axis = 2 if "Conv" in name else expected.ndim - 1
    others = tuple(i for i in range(expected.ndim) if i != axis)
    shift = {
        flag: np.abs((outputs(path, feeds, scheme, correct=flag) - expected).mean(axis=others)).max()
        for flag in (False, True)
    }
    assert shift[True] < 0.25 * shift[False]
    assert sqnr_db(expected, outputs(path, feeds, scheme, correct=True)) > sqnr_db(
        expected, outputs(path, feeds, scheme, correct=False)
    )


def test_an_error_of_one_outlier_is_not_spread_over_all_samples(tmp_path):
    path = onnx_text(LAYERS["Gemm"], tmp_path / "m.onnx", w=normal(16, 5), b=normal(5))
    feeds = [{"x": normal(9, 16)} for _ in range(8)]
    model, _ = load_float(path)
    ranges = ranges_of(model, feeds)
    feeds[0]["x"] = feeds[0]["x"].copy()
    feeds[0]["x"][0] = 1000.0  # far outside of the range: clipped
    plan = make_plan(model, SYMMETRIC)
    errors = mean_errors(model, plan, shared_parameters(plan, ranges, SYMMETRIC), SYMMETRIC, replay_of(feeds))
    assert not errors["n"].any()


def test_a_layer_without_a_bias_of_its_own_is_left(tmp_path):
    text = "g (float[2,16] x, float[5] b) => (float[2,5] y) { [n] y = Gemm (x, w, b) }"
    path = onnx_text(text, tmp_path / "m.onnx", w=normal(16, 5))
    model, _ = load_float(path)
    feeds = [{"x": 3 + normal(2, 16), "b": normal(5)}]
    plan = make_plan(model, dataclasses.replace(SYMMETRIC))
    parameters = shared_parameters(plan, ranges_of(model, feeds), SYMMETRIC)
    assert mean_errors(model, plan, parameters, SYMMETRIC, replay_of(feeds)) == {}
    assert correct_biases(model, {}) == []
