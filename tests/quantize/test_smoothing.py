"""Equalisation leaves the float model as it is, and makes its quantized form better."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from quantize_models import AFFINE, SYMMETRIC, onnx_text, ranges_of, run, sqnr_db

from deploykit import graph
from deploykit.quantize.plan import make_plan
from deploykit.quantize.prepare import load_float
from deploykit.quantize.qdq import Inserter, shared_parameters
from deploykit.quantize.smoothing import (
    ChannelStatistics,
    Reading,
    choose_factors,
    equalise,
    find_sites,
    measure_channels,
    predicted_error,
    rows_by_channel,
    scaled_weight,
)

RNG = np.random.default_rng(1)
OUTLIER = np.float32([1, 1, 1, 1, 1, 1, 1, 300])
SPREAD = np.geomspace(0.01, 10, 8).astype(np.float32)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def uneven(*shape: int) -> np.ndarray:
    """Weights whose output channels (axis 0) differ a thousandfold."""
    return normal(*shape) * SPREAD.reshape(-1, *[1] * (len(shape) - 1))


HARD_SWISH = """g (float[1,3,8,8] x) => (float[1,8,6,6] y) {
    [c] a = Conv (x, w1, b1)
    [add] s = Add (a, three)
    [clip] h = Clip (s, zero, six)
    [mul] m = Mul (a, h)
    [div] d = Div (m, six)
    [scale] e = Mul (d, gain)
    [shift] f = Add (e, offset)
    [dw] y = Conv <group=8, pads=[0,0,0,0], kernel_shape=[1,1]> (f, w2)
}"""
CASES = {
    "conv": (
        "g (float[1,3,8,8] x) => (float[1,8,4,4] y) { a = Conv (x, w1, b1) y = Conv <group=8> (a, w2) }",
        {"w1": uneven(8, 3, 3, 3), "b1": normal(8) * SPREAD, "w2": normal(8, 1, 3, 3)},
    ),
    "relu_pool": (
        """g (float[1,3,8,8] x) => (float[1,8,3,3] y) {
            a = Conv (x, w1) r = Relu (a) p = MaxPool <kernel_shape=[2,2], strides=[2,2]> (r) y = Conv (p, w2)
        }""",
        {"w1": uneven(8, 3, 3, 3), "w2": normal(8, 8, 1, 1)},
    ),
    "hard_swish": (
        HARD_SWISH,
        {
            "w1": uneven(8, 3, 3, 3),
            "b1": normal(8),
            "w2": normal(8, 1, 1, 1),
            "three": np.float32([3]),
            "zero": np.float32(0),
            "six": np.float32(6),
            "gain": np.float32([1.5]),
            "offset": np.float32([-0.25]),
        },
    ),
    "layer_norm": (
        """g (float[2,5,8] x) => (float[2,5,4] y, float[2,5,4] z) {
            n = LayerNormalization (x, gamma, beta) y = MatMul (n, w1) z = MatMul (n, w2)
        }""",
        {"gamma": SPREAD, "beta": normal(8), "w1": normal(8, 4), "w2": normal(8, 4)},
    ),
    "gemm": (
        "g (float[2,3] x) => (float[2,4] y) { a = Gemm <transB=1> (x, w1, b1) r = Relu (a) y = Gemm (r, w2) }",
        {"w1": uneven(8, 3), "b1": normal(8), "w2": normal(8, 4)},
    ),
    "transposed": (
        "g (float[1,3,4,4] x) => (float[1,2,6,6] y) { a = Conv (x, w1) y = ConvTranspose (a, w2) }",
        {"w1": uneven(8, 3, 1, 1), "w2": normal(8, 2, 3, 3)},
    ),
    "residual": (  # the sum reads the tensor, too: an extra Mul
        "g (float[2,5,8] x) => (float[2,5,8] y) { a = LayerNormalization (x, g1) b = MatMul (a, w) y = Add (a, b) }",
        {"g1": OUTLIER, "w": normal(8, 8) / OUTLIER[:, None]},
    ),
}
ABSORBED = set(CASES) - {"residual"}


def replay_of(feeds):
    def replay(session):
        names = [output.name for output in session.get_outputs()]
        for feed in feeds:
            yield {**feed, **dict(zip(names, session.run(None, feed), strict=True))}

    return replay


def equalised(path, feeds, strength=None):
    model, _ = load_float(path)
    sites = find_sites(model)
    factors = choose_factors(sites, measure_channels(model, sites, replay_of(feeds)), strength=strength)
    extra = equalise(model, factors)
    return graph.infer_shapes(model), factors, extra


def feeds_of(path, count=8):
    inputs, _ = graph.interface(graph.load(path))
    return [{spec.name: normal(*spec.shape) for spec in inputs} for _ in range(count)]


def quantized_error(model, path, feeds, scheme):
    ranges = ranges_of(model, feeds)
    plan = make_plan(model, scheme)
    Inserter(model, plan, scheme, shared_parameters(plan, ranges, scheme)).run()
    out = path.with_name("q.onnx")
    graph.save(graph.infer_shapes(model), out)
    pairs = [(run(path, feed, optimize=False), run(out, feed, optimize=False)) for feed in feeds]
    return min(
        sqnr_db(np.stack([a[name] for a, _ in pairs]), np.stack([b[name] for _, b in pairs])) for name in pairs[0][0]
    )


@pytest.mark.parametrize("name", CASES)
def test_the_float_model_computes_the_same(tmp_path, name):
    text, weights = CASES[name]
    path = onnx_text(text, tmp_path / "m.onnx", **weights)
    feeds = feeds_of(path)
    model, factors, extra = equalised(path, feeds)
    assert factors
    assert bool(extra) == (name not in ABSORBED)
    assert len(model.graph) == len(graph.load(path).graph) + len(extra)
    out = tmp_path / "e.onnx"
    graph.save(model, out)
    for feed in feeds:
        expected, found = run(path, feed, optimize=False), run(out, feed, optimize=False)
        for key, value in expected.items():
            np.testing.assert_allclose(found[key], value, rtol=1e-4, atol=1e-5 * np.abs(value).max())


@pytest.mark.parametrize("scheme", [SYMMETRIC, AFFINE])
@pytest.mark.parametrize("name", ["conv", "layer_norm", "residual"])
def test_the_quantized_model_is_better(tmp_path, name, scheme):
    text, weights = CASES[name]
    path = onnx_text(text, tmp_path / "m.onnx", **weights)
    feeds = feeds_of(path)
    plain = quantized_error(load_float(path)[0], path, feeds, scheme)
    assert quantized_error(equalised(path, feeds)[0], path, feeds, scheme) >= plain - 0.5


def test_small_channels_survive_in_front_of_a_depthwise_layer(tmp_path):
    text, weights = CASES["conv"]
    path = onnx_text(text, tmp_path / "m.onnx", **weights)
    feeds = feeds_of(path)
    worst = {}
    for kind, model in (("plain", load_float(path)[0]), ("equalised", equalised(path, feeds)[0])):
        ranges = ranges_of(model, feeds)
        plan = make_plan(model, SYMMETRIC)
        Inserter(model, plan, SYMMETRIC, shared_parameters(plan, ranges, SYMMETRIC)).run()
        graph.save(graph.infer_shapes(model), tmp_path / f"{kind}.onnx")
        feed = feeds[0]
        expected, found = run(path, feed)["y"], run(tmp_path / f"{kind}.onnx", feed, optimize=False)["y"]
        worst[kind] = min(sqnr_db(expected[:, c], found[:, c]) for c in range(8))
    assert worst["plain"] < 10
    assert worst["equalised"] > 25


@pytest.mark.parametrize("op", ["Conv", "grouped", "depthwise", "ConvTranspose", "MatMul", "Gemm", "transB"])
def test_rows_and_scaled_weights_agree(op):
    node, weight = layer(op)
    factors = np.float32([1, 2, 4, 8])
    rows, scaled = rows_by_channel(node, weight), rows_by_channel(node, scaled_weight(node, weight, factors))
    assert rows.shape[1] == 4
    np.testing.assert_allclose(scaled, rows * factors[None, :, None])


def layer(op):
    """A node that reads 4 channels, and its weight."""
    import onnx_ir as ir

    shape = {"grouped": (4, 2, 3), "depthwise": (8, 1, 3), "Conv": (5, 4, 3), "ConvTranspose": (4, 5, 3)}.get(
        op, (4, 5)
    )
    weight = normal(*shape)
    if op == "transB":
        weight = weight.T.copy()
    attributes = {"grouped": {"group": 2}, "depthwise": {"group": 4}, "transB": {"transB": 1}}.get(op, {})
    kind = {"grouped": "Conv", "depthwise": "Conv", "transB": "Gemm"}.get(op, op)
    return ir.node(kind, [None, None], attributes=attributes), weight


@pytest.mark.parametrize("op", ["Conv", "grouped", "depthwise", "ConvTranspose", "MatMul", "Gemm", "transB"])
def test_the_prediction_is_that_of_every_single_weight(op):
    node, weight = layer(op)
    seen = ChannelStatistics.of(normal(2, 4, 50) * np.float32([1, 5, 0.1, 2])[None, :, None], 1)
    factors = np.array([1, 2, 0.5, 8])
    rows = rows_by_channel(node, weight).astype(np.float64)
    step = (max((seen.high / factors).max(), 0) - min((seen.low / factors).min(), 0)) / 255
    variance = (seen.square - seen.mean**2) / factors**2
    expected = 0.0
    for output in rows * factors[None, :, None]:
        read = ~np.isnan(output)
        expected += step**2 / 12 * (output[read] ** 2).sum()
        expected += (np.abs(output[read]).max() / 127) ** 2 / 12 * (read * variance[:, None]).sum()
    assert predicted_error([Reading.of(node, weight)], seen, factors) == pytest.approx(expected, rel=1e-5)


def test_statistics_of_channels_over_samples():
    samples = [normal(2, 3, 4), normal(2, 3, 7)]
    found = functools.reduce(
        lambda kept, one: kept.merge(one) or kept, [ChannelStatistics.of(sample, 1) for sample in samples]
    )
    np.testing.assert_allclose(found.low, np.minimum(samples[0].min((0, 2)), samples[1].min((0, 2))), rtol=1e-6)
    np.testing.assert_allclose(found.mean, (samples[0].mean((0, 2)) + samples[1].mean((0, 2))) / 2, rtol=1e-5)


def test_a_tensor_that_is_an_output_takes_no_factors_but_a_mul(tmp_path):
    text = (
        "g (float[1,3,8,8] x) => (float[1,8,6,6] a, float[1,8,4,4] y) { a = Conv (x, w1) y = Conv <group=8> (a, w2) }"
    )
    path = onnx_text(text, tmp_path / "m.onnx", w1=uneven(8, 3, 3, 3), w2=normal(8, 1, 3, 3))
    feeds = feeds_of(path)
    model, _, extra = equalised(path, feeds, strength=0.5)
    assert "a" in extra
    graph.save(model, tmp_path / "e.onnx")
    expected = run(path, feeds[0])["a"]
    found = run(tmp_path / "e.onnx", feeds[0])["a"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())


def test_constants_are_not_equalised(tmp_path):
    text = "g (float[2,8] x) => (float[2,4] y) { h = MatMul (c, w)  z = MatMul (x, w)  y = Add (h, z) }"
    path = onnx_text(text, tmp_path / "m.onnx", c=normal(2, 8), w=normal(8, 4))
    assert [site.name for site in find_sites(graph.load(path))] == ["x"]
