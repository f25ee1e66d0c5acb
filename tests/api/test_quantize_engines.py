"""What the schemes are for: engines take the INT8 models, and run them in integer kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest

import deploykit
from deploykit import lazy
from deploykit.comparison import int8_share
from deploykit.data.request import data_request
from deploykit.isolation import workers
from deploykit.progress import silent
from deploykit.quantize.settings import Settings
from deploykit.quantize.static import quantize_static
from deploykit.runtime import open_runtime
from deploykit.target import get_target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Samples = Iterator[dict[str, np.ndarray]]

SAMPLES = 8


@pytest.fixture(scope="module", autouse=True)
def _one_worker():
    """All tests of this file share their worker processes: imports are paid once."""
    with workers():
        yield


def _normalised(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """The image at that size (nearest neighbour), -1 to 1, [1, 3, height, width]."""
    rows = np.arange(height) * image.shape[0] // height
    columns = np.arange(width) * image.shape[1] // width
    scaled = image[rows][:, columns].astype(np.float32) / 127.5 - 1
    return np.ascontiguousarray(scaled.transpose(2, 0, 1)[None])


def _lines(find: Callable[[str], Path], width: int | None) -> Samples:
    stored = np.load(find("ppocr_v4/ocr_lines_dev.npz"))
    for index in range(SAMPLES):
        image = stored[f"i{index:03d}"]
        yield {"x": _normalised(image, 48, width or 48 * image.shape[1] // image.shape[0])}


def _pages(find: Callable[[str], Path]) -> Samples:
    stored = np.load(find("ppocr_v4/ocr_lines_dev.npz"))
    for index in range(SAMPLES):
        lines = [_normalised(stored[f"i{(index + step) % 80:03d}"], 40, 320) for step in range(8)]
        yield {"x": np.concatenate(lines, axis=2)}


def _drawn(**shapes: tuple[str, tuple[int, ...]]) -> Callable[[Callable[[str], Path]], Samples]:
    """Drawn inputs: {name: (numpy expression kind, shape)}; enough to build and to place kernels, not for accuracy."""

    def make(_: Callable[[str], Path]) -> Samples:
        rng = np.random.default_rng(0)
        for _index in range(SAMPLES):
            feeds = {}
            for name, (kind, shape) in shapes.items():
                if kind == "normal":
                    feeds[name] = rng.normal(size=shape).astype(np.float32)
                else:
                    feeds[name] = rng.integers(0, 60, shape).astype(kind)
            yield feeds

    return make


def _frames(find: Callable[[str], Path]) -> Samples:
    stream = np.load(find("silero_vad/vad_stream_dev.npz"))["x"].astype(np.float32) / 32768
    for index in range(SAMPLES):
        frame = stream[20000 + 4000 * index :][:576]
        yield {"input": frame[None], "state": np.zeros((2, 1, 128), np.float32)}


def _at_16_khz(source: Path, path: Path) -> Path:
    """silero's model for one sample rate, simplified: as published, all its layers are in branches on the rate."""
    model = onnx.load(source)
    kept = [value for value in model.graph.input if value.name != "sr"]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(16000, np.int64), "sr"))
    onnx.save(model, path.with_suffix(".rate.onnx"))
    assert deploykit.simplify(path.with_suffix(".rate.onnx"), output=path).exit_code == 0
    return path


# model: (calibration, least share of the MACs in integer kernels). Recurrent layers stay float: what is left over is
# 28 % in nsnet2 and the classifier behind the LSTM, 0.23 %, in jvowels.
MODELS: dict[str, tuple[Callable[[Callable[[str], Path]], Samples], float]] = {
    "digits/digits_cnn": (_drawn(input=("normal", (1, 1, 8, 8))), 0.9),
    "mnist5k/mnist5k_cnn": (_drawn(input=("normal", (1, 1, 28, 28))), 0.9),
    "ppocr_v4/cls": (lambda find: _lines(find, 192), 0.9),
    "ppocr_v4/rec": (lambda find: _lines(find, 320), 0.9),
    "ppocr_v4/det": (_pages, 0.9),
    "jvowels/jvowels_lstm": (_drawn(x=("normal", (1, 16, 12))), 0.0022),
    "silero_vad/silero_vad_op18_ifless": (_frames, 0.9),
    "magika/model": (_drawn(bytes=("int32", (1, 2048))), 0.9),
    "attacut/attacut-sc": (_drawn(input=("int64", (1, 2, 32))), 0.9),
    "nsnet2/nsnet2-20ms-baseline": (_drawn(input=("normal", (1, 32, 161))), 0.25),
    "dnsmos/sig_bak_ovr": (_drawn(input_1=("normal", (1, 144160))), 0.9),
}
QUICK = {"digits/digits_cnn", "ppocr_v4/cls"}


def _models() -> list[object]:
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]


def _of_fixed_size(source: Path, feed: dict[str, np.ndarray], path: Path) -> Path:
    """The model for inputs of these shapes: some of the models name several sizes alike ("?")."""
    model = onnx.load(source)
    for value in model.graph.input:
        if value.name in feed:
            dims = value.type.tensor_type.shape.dim
            for dim, size in zip(dims, feed[value.name].shape, strict=True):
                dim.dim_value = size
    del model.graph.value_info[:]
    onnx.save(model, path)
    return path


def quantized(find: Callable[[str], Path], name: str, target: str, folder: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """The INT8 model for the target, and one of the samples; the gate of accuracy is for other tests and real data."""
    calib = folder / "calib"
    calib.mkdir()
    feeds = list(MODELS[name][0](find))
    for index, feed in enumerate(feeds):
        np.savez(calib / f"{index}.npz", **feed)
    source = find(f"{name}.onnx")
    if name.startswith("silero_vad"):
        source = _at_16_khz(source, folder / "rate.onnx")
    if target != "onnxruntime":  # which takes any sizes
        source = _of_fixed_size(source, feeds[0], folder / "float.onnx")
    settings = Settings(scheme=get_target(target).scheme, data=data_request(str(calib), "calibration"))
    quantize_static(source, folder / "q.onnx", settings, silent)
    return folder / "q.onnx", feeds[0]


def integer_share(path: Path, feed: dict[str, np.ndarray]) -> float:
    """Share of the multiply-accumulates that the engine's own profile shows in 8-bit kernels."""
    runtime = open_runtime(path)
    try:
        share = int8_share(runtime.kernels(feed))
    finally:
        runtime.close()
    assert share is not None
    return share


@pytest.mark.parametrize("name", _models())
def test_tensorrt_rtx_builds_the_model(shared_model, tmp_path, name):
    if not lazy.installed("tensorrt_rtx"):
        pytest.skip("tensorrt-rtx is not installed")
    made, feed = quantized(shared_model, name, "tensorrt-rtx", tmp_path)
    shapes = {key: "x".join(map(str, value.shape)) for key, value in feed.items()}
    profiles = [f"{key}={shape}:{shape}:{shape}" for key, shape in shapes.items()]
    report = deploykit.convert(made, to="tensorrt-rtx", output=tmp_path / "q.engine", profiles=profiles)
    assert report.exit_code == 0, [finding.message for finding in report.findings]
    assert (tmp_path / "q.engine").stat().st_size > 1000


@pytest.mark.parametrize("name", _models())
def test_openvino_runs_integer_kernels(shared_model, tmp_path, name):
    pytest.importorskip("openvino")
    made, feed = quantized(shared_model, name, "openvino", tmp_path)
    report = deploykit.convert(made, to="openvino", output=tmp_path / "q.xml", data=str(tmp_path / "calib"))
    assert report.exit_code == 0, [finding.message for finding in report.findings]
    assert integer_share(tmp_path / "q.xml", feed) >= MODELS[name][1]


@pytest.mark.parametrize("name", _models())
def test_onnxruntime_runs_integer_kernels(shared_model, tmp_path, name):
    made, feed = quantized(shared_model, name, "onnxruntime", tmp_path)
    assert integer_share(made, feed) >= MODELS[name][1]
