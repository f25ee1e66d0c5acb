from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from lite_models import Lite, batch, dense

from deploykit.converters.litert import flatbuffer
from deploykit.converters.litert.finishing import Made, finish
from deploykit.converters.litert.interface import traced_names
from deploykit.converters.litert.options import settings_of
from deploykit.converters.litert.runtime import load
from deploykit.converters.litert.taps import LiteRtTaps, open_taps
from deploykit.converters.litert.tracing import traced
from deploykit.data.request import data_request
from deploykit.locating.job import locate_job
from deploykit.runtime import RuntimeOptions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

EXACT = RuntimeOptions(optimize=False)
TEXT = """
agraph (float[n, 24] x) => (float[n, 5] y)
{
    m = MatMul (x, w1)
    a = Add (m, b1)
    h = Relu (a)
    k = MatMul (h, w2)
    y = Add (k, b2)
}
"""


@pytest.fixture
def model(onnx_file: Callable[..., Path]) -> Path:
    """The ONNX of `dense`."""
    (w1, b1), (w2, b2) = dense().weights
    return onnx_file(TEXT, w1=w1.T.copy(), b1=b1, w2=w2.T.copy(), b2=b2)


def finished(lite: Lite, model: Path, final: Path, calib: dict[str, Any] | None = None, **options: str) -> Path:
    made = Made(
        lite.content,
        lite.inputs,
        lite.outputs,
        names=lambda content: traced(model, content, final.name, lite.inputs, {"n": [2, 2]}),
    )
    finish(made, final, settings_of(options, calibrated=calib is not None), "fp32", calib)
    return final


def test_an_inner_tensor_is_read_and_replaced() -> None:
    lite, x = dense(), batch(3)
    taps = LiteRtTaps(lite.content, "m.tflite", EXACT)
    assert list(taps.tensors) == ["inner/relu", "y_out"]
    assert taps.tensors["inner/relu"].op == "FULLY_CONNECTED"
    np.testing.assert_allclose(taps.read({"x": x}, ["inner/relu"])["inner/relu"], lite.hidden(x), rtol=1e-5, atol=1e-5)
    given = np.ones((3, 40), np.float32)
    w, b = lite.weights[1]
    found = taps.read({"x": x}, ["y_out"], {"inner/relu": given})["y_out"]
    np.testing.assert_allclose(found, given @ w.T + b, rtol=1e-5, atol=1e-5)


def test_tensors_are_matched_by_their_values(tmp_path: Path, model: Path) -> None:
    final = finished(dense(), model, tmp_path / "m.tflite")
    taps = open_taps(final, EXACT)
    # The file fuses bias and ReLU: what lies between has no counterpart.
    assert taps.find(["m", "a", "h", "k", "y"]) == {"h": "inner/relu", "y": "y_out"}
    assert set(traced_names(flatbuffer.parse(final.read_bytes(), "m"))) == {"h", "y"}


def test_integers_are_read_as_what_they_stand_for(tmp_path: Path, model: Path) -> None:
    file = tmp_path / "calib.npz"
    np.savez(file, x=batch(64, seed=2))
    calib = data_request(str(file), "calibration")
    lite = dense()
    final = finished(lite, model, tmp_path / "m.tflite", calib, precision="int8")
    taps, x = open_taps(final, EXACT), batch(16)
    (own,) = taps.find(["h"]).values()
    found = taps.read({"x": x}, [own])[own]
    step = float(lite.hidden(batch(64, seed=2)).max()) / 255
    assert found.dtype == np.float32
    assert float(np.abs(found - lite.hidden(x)).mean()) < 2 * step
    given = taps.read({"x": x}, ["y_out_dequant" if "y_out_dequant" in taps.tensors else "y_out"], {own: found})
    np.testing.assert_allclose(next(iter(given.values())), load(final, EXACT).predict({"x": x})["y"], atol=1e-5)


def test_the_layer_with_wrong_weights_is_located(tmp_path: Path, model: Path) -> None:
    final = finished(dense(), model, tmp_path / "m.tflite")
    broken = flatbuffer.parse(final.read_bytes(), "m")
    index = broken.subgraphs[0].operators[0].inputs[1]
    buffer = broken.buffers[broken.subgraphs[0].tensors[index].buffer]
    weights = np.frombuffer(bytes(buffer.data), np.float32).copy()
    weights[:12] *= -2
    buffer.data = weights.view(np.uint8)
    final.write_bytes(flatbuffer.serialize(broken))
    found = locate_job(
        str(model), str(final), data_request("random:1", "parity", samples=2, dims={"n": [2, 2]}), "fp32"
    )
    assert found["first"]["tensor"] == "h"
    assert found["first"]["source_op"] == "Relu"
    assert {step["op"] for step in found["first"]["steps"]} == {"MatMul", "Add", "Relu"}
    assert found["matched"] == 2


def test_the_failing_part_is_a_file_of_its_own(tmp_path: Path) -> None:
    lite, x = dense(), batch(2)
    taps = LiteRtTaps(lite.content, "m.tflite", EXACT)
    hidden = lite.hidden(x)
    (file,) = taps.save_part(tmp_path / "part.onnx", ["y_out"], {"inner/relu": hidden}, {"inner/relu": "h"}, {})
    runtime = load(file, EXACT)
    assert [spec.name for spec in runtime.inputs] == ["h"]
    np.testing.assert_allclose(runtime.predict({"h": hidden})["y_out"], lite(x), rtol=1e-5, atol=1e-5)
