"""A stream of speech, frame by frame, as the voice-activity model takes it.

The model is stateful: `state` is given with the first frame only, and deploykit carries it on from the output `stateN`
(see `inputs:` in the configuration).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
SAMPLE_RATE = 16_000
FRAME = 512  # samples a frame
CONTEXT = 64  # samples of the previous frame in front of it


def frames() -> Iterator[dict[str, Any]]:
    """Feeds for every frame of stream.npz, with `y` where the frame has a label (1 speech, 0 none)."""
    stream = np.load(HERE / "stream.npz")
    audio = stream["x"].astype(np.float32) / 32768
    labels = stream.get("y")
    context = np.zeros(CONTEXT, np.float32)
    for index in range(len(audio) // FRAME):
        frame = audio[index * FRAME : (index + 1) * FRAME]
        feed: dict[str, Any] = {"input": np.concatenate([context, frame])[None], "sr": np.array(SAMPLE_RATE, np.int64)}
        if index == 0:
            feed["state"] = np.zeros((2, 1, 128), np.float32)
        # Frames at the edges of speech have the label -1: they are run, since the state needs them, and not scored.
        if labels is not None and labels[index] >= 0:
            feed["y"] = int(labels[index])
        context = frame[-CONTEXT:]
        yield feed


def synthetic_stream(seconds: float = 12.0) -> np.ndarray:
    """Noise with bursts of a buzzing, vowel-like sound: int16 samples. Not speech, so it has no labels."""
    rng = np.random.default_rng(0)
    time = np.arange(int(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    pitch = 120 + 20 * np.sin(2 * np.pi * 0.7 * time)
    phase = 2 * np.pi * np.cumsum(pitch) / SAMPLE_RATE
    voice = sum(np.sin(k * phase) / k for k in range(1, 20))
    burst = (np.sin(2 * np.pi * 0.4 * time) > 0).astype(np.float64)
    audio = 0.05 * voice * burst + 0.003 * rng.standard_normal(time.size)
    return (audio * 32767).clip(-32768, 32767).astype(np.int16)
