"""Makes the helper module beside the tests importable under its own name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import wave

import numpy as np
import pytest


@pytest.fixture(scope="session")
def spectrum(shared_model):
    """Frames of real speech as nsnet2 takes them: log power of 161 bins, [1, frames, 161]."""
    with wave.open(str(shared_model("speech/librivox-0880.wav"))) as file:
        audio = np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768
    frames = np.lib.stride_tricks.sliding_window_view(audio, 320)[::160] * np.sqrt(np.hanning(321)[:-1])
    power = np.abs(np.fft.rfft(frames)) ** 2
    return np.log10(np.maximum(power, 1e-12)).astype(np.float32)[None]
