"""Weights that no integers stand for: the layer stays float in every integer precision, and the report says why."""

from __future__ import annotations

import numpy as np
import pytest
from quantize_models import AFFINE, onnx_text, run

from deploykit import graph
from deploykit.data import data_request
from deploykit.quantize.jobs import quantize_job
from deploykit.quantize.settings import Settings
from deploykit.quantize.slices import why_not_integers

RNG = np.random.default_rng(0)
SOUND = RNG.normal(size=(32, 64)).astype(np.float32)


def spoiled(value: float) -> np.ndarray:
    weight = SOUND.copy()
    weight[3, 5] = value
    return weight


WEIGHTS = {
    "nan": (spoiled(np.nan), "NaN or infinite"),
    "infinite": (spoiled(-np.inf), "NaN or infinite"),
    "tiny": (SOUND * np.float32(1e-40), "no float32 scale is so small"),
    "zero": (SOUND * 0, ""),
    "huge": (SOUND * np.float32(1e30), ""),
    "empty": (SOUND[:0], ""),
}


@pytest.mark.parametrize("kind", WEIGHTS)
def test_the_reason(tmp_path, kind):
    weight, reason = WEIGHTS[kind]
    text = f"g (float[n,{len(weight)}] x) => (float[n,64] y) {{ y = MatMul (x, w) }}"
    value = graph.load(onnx_text(text, tmp_path / "m.onnx", w=weight)).graph.initializers["w"]
    found = why_not_integers(value)
    assert (reason in found) if reason else not found
    assert why_not_integers(value) == found


@pytest.mark.parametrize("precision", ["int8", "int8-dynamic", "int8-weights", "int4-weights"])
@pytest.mark.parametrize("kind", ["nan", "tiny"])
def test_the_layer_stays_float_and_the_others_do_not(tmp_path, precision, kind):
    weight, reason = WEIGHTS[kind]
    text = "g (float[n,32] x) => (float[n,64] y, float[n,64] z) { [bad] y = MatMul (x, w)  [good] z = MatMul (x, v) }"
    path = onnx_text(text, tmp_path / "m.onnx", w=weight, v=SOUND)
    folder = tmp_path / "calib"
    folder.mkdir()
    x = RNG.normal(size=(20, 32)).astype(np.float32)
    np.savez(folder / "0.npz", x=x)
    settings = Settings(scheme=AFFINE, target="onnxruntime", data=data_request(str(folder), "calibration"))
    made = quantize_job(str(path), str(tmp_path / "q.onnx"), precision, settings.as_dict())
    (finding,) = (f for f in made["findings"] if f["code"] == "DK355")
    assert finding["node"] == "bad"
    assert reason in finding["message"]
    assert (made["metrics"]["quantized_nodes"], made["metrics"]["float_nodes"]) == (1, 1)
    found, expected = run(tmp_path / "q.onnx", {"x": x}), run(path, {"x": x}, optimize=False)
    np.testing.assert_allclose(found["y"], expected["y"], rtol=1e-4, atol=1e-5)
    assert 0 < np.abs(found["z"] - expected["z"]).max() < 0.3 * np.abs(expected["z"]).max()
