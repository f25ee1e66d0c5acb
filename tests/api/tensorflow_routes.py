"""Keras models for the routes to Core ML, with their own answers; run in the TensorFlow worker, not in pytest."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np

layers = keras.layers


def make(folder: str) -> None:
    """Writes `<name>.keras`, `<name>-saved` and `<name>.npz` with inputs and what Keras answers."""
    root = Path(folder)
    keras.utils.set_random_seed(1)
    for name, model in (("mobile", _mobile()), ("recurrent", _recurrent()), ("exact", _exact())):
        model.save(root / f"{name}.keras")
        model.export(root / f"{name}-saved", verbose=False)
        x = np.random.default_rng(0).standard_normal((2, *model.input_shape[1:])).astype(np.float32)
        np.savez(root / f"{name}.npz", x=x, y=np.asarray(model(x)))


def _mobile() -> keras.Model:
    first = [keras.Input((16, 16, 3), name="image"), layers.Conv2D(8, 3, 2, padding="same", use_bias=False)]
    second = [layers.BatchNormalization(), layers.ReLU(6.0), layers.DepthwiseConv2D(3, padding="same")]
    third = [layers.MaxPooling2D(), layers.Conv2D(16, 1, activation="silu"), layers.GlobalAveragePooling2D()]
    return keras.Sequential([*first, *second, *third, layers.Dense(4, activation="softmax", name="scores")])


def _recurrent() -> keras.Model:
    return keras.Sequential([keras.Input((6, 4), name="frames"), layers.LSTM(5, name="last")])


def _exact() -> keras.Model:
    """Its exact GELU becomes Erfc, for which neither way has an operator."""
    return keras.Sequential([keras.Input((4,), name="x"), layers.Dense(3, activation="gelu", name="y")])
