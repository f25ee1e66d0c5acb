"""Sampling at computed places, Fourier transforms, caches: lowerings that are written with gathers and products."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

RANDOM = np.random.default_rng(5)


def model(inputs, output, constants, body, opset=22):
    made = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : {opset}]>\ng ({inputs}) => ({output}) <{constants}> {{ {body} }}'
    )
    made.graph.output[0].type.tensor_type.ClearField("shape")
    return made


def _some(cases, every):
    """One of so many in CI, the others in the long run."""
    return [pytest.param(*case, marks=pytest.mark.slow if at % every else ()) for at, case in enumerate(cases)]


# mode, padding, aligned, rank of the plane; onnxruntime has nearest and linear of volumes, cubic of planes only.
SAMPLING = [
    ("nearest", "zeros", 0, 2),
    ("nearest", "border", 1, 2),
    ("nearest", "reflection", 0, 2),
    ("linear", "reflection", 0, 2),
    ("linear", "reflection", 1, 2),
    ("cubic", "zeros", 0, 2),
    ("cubic", "zeros", 1, 2),
    ("linear", "zeros", 0, 3),
    ("linear", "border", 1, 3),
    ("nearest", "zeros", 1, 3),
]


@pytest.mark.parametrize(("mode", "padding", "aligned", "rank"), _some(SAMPLING, 3))
def test_grid_sample(agrees, mode, padding, aligned, rank):
    plane, out = [5, 7, 3][:rank], [4, 6, 2][:rank]
    sizes, places = ",".join(map(str, plane)), ",".join(map(str, out))
    text = model(
        f"float[n,2,{sizes}] x, float[n,{places},{rank}] g",
        "float y",
        "",
        f'y = GridSample <mode="{mode}", padding_mode="{padding}", align_corners={aligned}> (x, g)',
    )
    for batch in (1, 3):
        x = RANDOM.normal(size=(batch, 2, *plane)).astype(np.float32)
        grid = RANDOM.uniform(-1.4, 1.4, (batch, *out, rank)).astype(np.float32)
        agrees(text, {"x": x, "g": grid}, dims={"n": [1, 4]})


def test_the_nearest_pixel_in_the_middle_is_the_even_one(agrees):
    text = model(
        "float[1,1,1,5] x, float[1,1,4,2] g", "float y", "", 'y = GridSample <mode="nearest", align_corners=1> (x, g)'
    )
    x = np.arange(5, dtype=np.float32).reshape(1, 1, 1, 5)
    # Positions 0.5, 1.5, 2.5, 3.5 of 0..4: 0, 2, 2, 4.
    grid = np.array([[[[-0.75, 0], [-0.25, 0], [0.25, 0], [0.75, 0]]]], np.float32)
    agrees(text, {"x": x, "g": grid})


@pytest.mark.parametrize("refused", ["border", "reflection"])
def test_cubic_sampling_over_the_border_is_refused(save, build, refused):
    body = f'y = GridSample <mode="cubic", padding_mode="{refused}"> (x, g)'
    result, _ = build(save(model("float[1,1,5,5] x, float[1,2,2,2] g", "float y", "", body)))
    (finding,) = [f for f in result["findings"] if f["severity"] == "error"]
    assert finding["op"] == "GridSample"


# (sizes, axis, length or None, onesided, inverse)
TRANSFORMS = [
    ((3, 10, 1), 1, None, 0, 0),
    ((3, 9, 1), 1, None, 1, 0),
    ((3, 10, 2), 1, None, 0, 0),
    ((3, 10, 2), 1, None, 0, 1),
    ((2, 6, 4, 2), 1, None, 0, 0),
    ((3, 10, 1), 1, 16, 1, 0),
    ((3, 10, 1), 1, 7, 0, 0),
]


@pytest.mark.parametrize(("sizes", "axis", "length", "onesided", "inverse"), _some(TRANSFORMS, 3))
def test_dft(agrees, sizes, axis, length, onesided, inverse):
    constants = f"int64 a = {{{axis}}}" + ("" if length is None else f", int64 l = {{{length}}}")
    body = f"y = DFT <onesided={onesided}, inverse={inverse}> (x, {'' if length is None else 'l'}, a)"
    text = model(f"float[n,{','.join(map(str, sizes[1:]))}] x", "float y", constants, body)
    agrees(text, {"x": RANDOM.normal(size=sizes).astype(np.float32)}, dims={"n": [1, 4]}, tolerance=1e-4)


@pytest.mark.parametrize("length", [10, 9])
def test_the_inverse_of_a_onesided_dft_is_the_signal(save, build, evaluate, length):
    """onnxruntime has no such transform; numpy has."""
    signal = RANDOM.normal(size=(2, length)).astype(np.float32)
    spectrum = np.fft.rfft(signal)
    feeds = {"x": np.stack([spectrum.real, spectrum.imag], -1).astype(np.float32)}
    constants = f"int64 a = {{1}}, int64 l = {{{length}}}"
    text = model(f"float[2,{length // 2 + 1},2] x", "float y", constants, "y = DFT <onesided=1, inverse=1> (x, l, a)")
    result, package = build(save(text))
    assert [f["message"] for f in result["findings"] if f["severity"] == "error"] == []
    np.testing.assert_allclose(evaluate(package, feeds)["y"][..., 0], signal, atol=1e-5)


@pytest.mark.parametrize(("windowed", "onesided"), _some([(True, 1), (False, 1), (True, 0)], 3))
def test_stft(agrees, windowed, onesided):
    window = ", ".join(f"{value:.4f}" for value in np.hanning(16))
    constants = f"int64 s = {{5}}, int64 l = {{16}}, float[16] w = {{{window}}}"
    body = f"y = STFT <onesided={onesided}> (x, s, {'w' if windowed else ''}, l)"
    text = model("float[n,m,1] x", "float y", constants, body)
    for batch, length in ((1, 64), (3, 50)):
        feeds = {"x": RANDOM.normal(size=(batch, length, 1)).astype(np.float32)}
        agrees(text, feeds, dims={"n": [1, 4], "m": [32, 64]}, tolerance=1e-4)


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_tensor_scatter(save, build, evaluate, mode):
    """Against the onnx package's own evaluator: onnxruntime has none."""
    text = model(
        "float[n,2,6,3] p, float[n,2,2,3] u, int64[n] w",
        "float y",
        "",
        f'y = TensorScatter <mode="{mode}"> (p, u, w)',
        24,
    )
    path = save(text)
    result, package = build(path, dims={"n": [1, 4]})
    assert [f["message"] for f in result["findings"] if f["severity"] == "error"] == []
    feeds = {
        "p": RANDOM.normal(size=(2, 2, 6, 3)).astype(np.float32),
        "u": RANDOM.normal(size=(2, 2, 2, 3)).astype(np.float32),
        "w": np.array([1, 4 if mode == "linear" else 5]),
    }
    (expected,) = ReferenceEvaluator(text).run(None, feeds)
    made = evaluate(package, feeds | {"w": feeds["w"].astype(np.int32)})
    np.testing.assert_array_equal(made["y"], expected)


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_compress_by_a_condition_that_is_computed(agrees, axis):
    asked = "" if axis is None else f"<axis={axis}>"
    text = model("float[n,4] x, float[4] c", "float y", "", f"b = Cast <to=9> (c)\n y = Compress {asked} (x, b)")
    for kept in ([1, 0, 1, 0], [0, 1, 1, 1]):
        x = RANDOM.normal(size=(4, 4)).astype(np.float32)
        agrees(text, {"x": x, "c": np.array(kept, np.float32)}, dims={"n": [4, 5]})
