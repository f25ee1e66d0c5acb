"""GPTQ against rounding to nearest on trained models and real inputs; the numbers are printed."""

import numpy as np
import pytest
from quantize_models import run, sqnr_db

from deploykit.data.request import data_request
from deploykit.quantize.int4 import quantize_int4
from deploykit.quantize.settings import Settings


@pytest.fixture(scope="module")
def speech(spectrum):
    """Real speech for nsnet2, 60 frames at a time."""
    return "nsnet2/nsnet2-20ms-baseline.onnx", [
        {"input": spectrum[:, start : start + 60]} for start in range(0, spectrum.shape[1] - 60, 30)
    ]


@pytest.fixture(scope="module")
def lines(shared_model):
    """Lines of text for PP-OCR's recognizer: BGR from -1 to 1, 48 high."""
    pillow = pytest.importorskip("PIL.Image")
    images = np.load(shared_model("ppocr_v4/ocr_lines_dev.npz"))
    feeds = []
    for name in sorted(images.files)[:40]:
        image = pillow.fromarray(images[name])
        small = image.resize((round(48 * image.width / image.height), 48), pillow.Resampling.BILINEAR)
        feeds.append(
            {"x": np.ascontiguousarray((np.asarray(small, np.float32) / 127.5 - 1).transpose(2, 0, 1)[None, ::-1])}
        )
    return "ppocr_v4/rec.onnx", feeds


@pytest.mark.parametrize(
    ("given", "target"),
    [
        ("speech", "onnxruntime"),
        pytest.param("lines", "onnxruntime", marks=pytest.mark.slow),
        pytest.param("lines", "openvino", marks=pytest.mark.slow),
    ],
)
def test_gptq_beats_rounding_to_nearest(request, shared_model, tmp_path, given, target):
    model, feeds = request.getfixturevalue(given)
    source = shared_model(model)
    folder = tmp_path / "calib"
    folder.mkdir()
    for index, feed in enumerate(feeds[::2]):
        np.savez(folder / f"{index:03d}.npz", **feed)
    reference = flat(source, feeds[1::2])
    quality = {}
    for method in ("rtn", "gptq"):
        out = tmp_path / f"{method}.onnx"
        settings = Settings(target=target, method=method, block_size=16, data=data_request(str(folder), "calibration"))
        facts = quantize_int4(source, out, settings, lambda _: None)
        assert facts["metrics"]["rounded_by"][method] >= 2
        quality[method] = sqnr_db(reference, flat(out, feeds[1::2]))
    print(f"{model} for {target}, 4 bits, blocks of 16: rtn {quality['rtn']:.2f} dB, gptq {quality['gptq']:.2f} dB")
    assert quality["gptq"] > quality["rtn"] + 1


def flat(path, feeds):
    return np.concatenate([value.ravel() for feed in feeds for value in run(path, feed).values()])
