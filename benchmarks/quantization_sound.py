"""Models of sound in the quantization benchmark: voice activity, noise, quality, pitch."""

from __future__ import annotations

import wave
from typing import TYPE_CHECKING

import numpy as np
from quantization_data import ROOT, SHARED, halves, lay, rows

if TYPE_CHECKING:
    from pathlib import Path


def silero(folder: Path) -> None:
    """The stream's first half with the states that the float model has; the second half starts from silence."""
    import onnxruntime as ort

    data = np.load(SHARED / "silero_vad/vad_stream_dev.npz")
    sound = np.concatenate([np.zeros(64, np.float32), data["x"].astype(np.float32) / 32768])
    path = SHARED / "silero_vad/silero_vad_op18_ifless.onnx"
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    state, calib, scored, half = np.zeros((2, 1, 128), np.float32), [], [], len(data["y"]) // 2
    for index, label in enumerate(data["y"].astype(np.int64)):
        feed = {"input": sound[None, index * 512 : index * 512 + 576], "sr": np.array(16000, np.int64)}
        if index < half:
            calib.append({**feed, "state": state, "y": label})
            state = session.run(["stateN"], {**feed, "state": state})[0]
        else:
            scored.append({**feed, "y": label})
    scored[0]["state"] = np.zeros((2, 1, 128), np.float32)
    lay(folder, path, calib, scored)


def _sound() -> np.ndarray:
    with wave.open(str(SHARED / "speech/librivox-0880.wav")) as file:
        assert file.getframerate() == 16000
        read = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    stream = np.load(SHARED / "silero_vad/vad_stream_dev.npz")["x"]
    return np.concatenate([stream, read]).astype(np.float32) / 32768


def nsnet2(folder: Path) -> None:
    """Speech with white noise; the label is the mixture's own ratio mask, which the network estimates."""
    rng, sound, feeds = np.random.default_rng(0), _sound(), []
    window = np.sqrt(np.hanning(321)[:-1])

    def spectra(signal: np.ndarray) -> np.ndarray:
        frames = np.lib.stride_tricks.sliding_window_view(signal, 320)[::160] * window
        return np.abs(np.fft.rfft(frames, axis=1)) ** 2

    labels = np.repeat(np.load(SHARED / "silero_vad/vad_stream_dev.npz")["y"], 512)
    spoken = np.concatenate([labels, np.ones(len(sound) - len(labels))]) == 1
    for start in range(0, len(sound) - 8000, 2000):
        if spoken[start : start + 8000].mean() < 0.9:
            continue  # the stream's own noise would count as speech
        clean = sound[start : start + 8000]
        noise = rng.standard_normal(8000) * rng.choice([0.003, 0.01, 0.03])
        mask = np.sqrt(spectra(clean) / (spectra(clean) + spectra(noise) + 1e-12))
        mixed = np.log10(np.maximum(spectra(clean + noise), 1e-12)).astype(np.float32)
        feeds.append({"input": mixed[None], "y": mask[None].astype(np.float32)})
    lay(folder, "nsnet2/nsnet2-20ms-baseline.onnx", *halves(feeds))


def dnsmos(folder: Path) -> None:
    """Nine seconds of speech with white noise; there are no listeners' scores, so the label is the float model's."""
    import onnxruntime as ort

    rng, sound = np.random.default_rng(0), _sound()
    path = SHARED / "dnsmos/sig_bak_ovr.onnx"
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    feeds = []
    for start in range(0, len(sound) - 144160, 8000):
        part = sound[start : start + 144160] + rng.standard_normal(144160) * rng.choice([0, 0.003, 0.03])
        feed = {"input_1": part[None].astype(np.float32)}
        feeds.append({**feed, "y": session.run(None, feed)[0]})
    lay(folder, path, *halves(feeds))


def crepe(folder: Path) -> None:
    """Tones; the network is exported here from its PyTorch weights."""
    import deploykit

    deploykit.export(
        f"{ROOT / 'benchmarks' / 'source_modules.py'}:Crepe",
        output=folder / "model.onnx",
        inputs=["frames:float32[batch,1024]"],
        weights=SHARED / "crepe/tiny.pth",
    )
    data = np.load(SHARED / "crepe/crepe_dev.npz")
    x = data["x"] - data["x"].mean(axis=1, keepdims=True)
    x /= np.maximum(x.std(axis=1, keepdims=True), 1e-10)
    lay(folder, folder / "model.onnx", *halves(rows("frames", x.astype(np.float32), data["f0"])))


def pitch(outputs: dict[str, np.ndarray], label: np.ndarray) -> float:
    """100 when the pitch is within 50 cents of the true one."""
    (scores,) = next(iter(outputs.values()))
    at = int(scores.argmax())
    near = slice(max(0, at - 4), at + 5)
    cents = 20 * np.arange(360) + 1997.3794084376191
    found = 10 * 2 ** ((scores[near] * cents[near]).sum() / scores[near].sum() / 1200)
    return 100.0 * (abs(1200 * np.log2(found / float(label))) <= 50)


pitch.unit = "%"  # type: ignore[attr-defined]
