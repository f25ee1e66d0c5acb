"""Sources that are made on the spot for benchmarks/sources.py; each function takes a folder and returns the source."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODELS = ROOT.parent / "shared" / "models"


def _torch():
    import torch

    torch.manual_seed(0)
    return torch


def _cnn(torch):
    nn = torch.nn
    layers = [nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(8, 4)).eval()


def traced_cnn(folder):
    """A traced CNN with a batch norm."""
    torch = _torch()
    file = folder / "traced.pt"
    torch.jit.trace(_cnn(torch), torch.randn(2, 3, 32, 32)).save(str(file))
    return file


def scripted_branch(folder):
    """A scripted module whose branch hangs on its data."""
    torch = _torch()
    module = folder / "branch.py"
    module.write_text(
        "import torch\n\n\nclass Branch(torch.nn.Module):\n    def forward(self, x):\n"
        "        if bool(x.sum() > 0):\n            return x * 2\n        return x - 1\n"
    )
    sys.path.insert(0, str(folder))
    try:
        import branch

        torch.jit.script(branch.Branch()).save(str(folder / "branch.pt"))
    finally:
        sys.path.remove(str(folder))
    return folder / "branch.pt"


def silero_part(folder):
    """A factory of the part of silero VAD that takes its state."""
    file = folder / "part.py"
    path = MODELS / "silero_vad" / "silero_vad.jit"
    file.write_text(f"import torch\n\n\ndef part():\n    return torch.jit.load({str(path)!r})._model\n")
    return f"{file}:part"


def program(folder):
    """An exported program with a bounded batch."""
    torch = _torch()
    batch = torch.export.Dim("batch", min=1, max=16)
    made = torch.export.export(_cnn(torch), (torch.randn(2, 3, 32, 32),), dynamic_shapes=({0: batch},))
    torch.export.save(made, folder / "cnn.pt2")
    return folder / "cnn.pt2"


_KERAS = """
import sys
import numpy as np
import keras
import tensorflow as tf

folder, wanted = sys.argv[1:]
keras.utils.set_random_seed(0)
cnn = [keras.Input((80, 80, 3), name="image"), keras.layers.Conv2D(8, 3, activation="relu", name="conv"),
       keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(4, name="scores")]
if wanted == "sequential":
    keras.Sequential(cnn).save(f"{folder}/model.keras")
elif wanted == "lstm":
    keras.Sequential([keras.Input((None, 6), name="x"), keras.layers.LSTM(8), keras.layers.Dense(2, name="y")]).save(
        f"{folder}/model.keras")
elif wanted == "saved":
    class Two(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32, name="x")])
        def double(self, x):
            return {"y": x * 2}

        @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32, name="x")])
        def half(self, x):
            return {"y": x / 2}
    two = Two()
    tf.saved_model.save(two, f"{folder}/model", signatures={"double": two.double, "half": two.half})
else:
    converter = tf.lite.TFLiteConverter.from_keras_model(keras.Sequential(cnn))
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    data = np.random.default_rng(0).random((8, 1, 80, 80, 3)).astype(np.float32)
    converter.representative_dataset = lambda: ([item] for item in data)
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    open(f"{folder}/model.tflite", "wb").write(converter.convert())
"""


def _keras(folder, wanted, name):
    # In a process of its own: TensorFlow and PyTorch in one are no good company.
    subprocess.run([sys.executable, "-c", _KERAS, str(folder), wanted], check=True, capture_output=True)
    return folder / name


def keras_sequential(folder):
    """A Keras archive of a Sequential CNN."""
    return _keras(folder, "sequential", "model.keras")


def keras_lstm(folder):
    """A Keras archive of an LSTM for any length."""
    return _keras(folder, "lstm", "model.keras")


def saved_model(folder):
    """A SavedModel with two signatures."""
    return _keras(folder, "saved", "model")


def lite_int8(folder):
    """A LiteRT file with 8-bit weights and activations."""
    return _keras(folder, "int8", "model.tflite")


def sklearn_rows():
    """Rows of scikit-learn sources: (source, family, maker, options)."""
    return ()


def huggingface_rows():
    """Rows of Hugging Face folders: (source, family, maker, options)."""
    return ()
