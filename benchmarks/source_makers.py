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
    trusted = {"trust": True}  # xgboost's and lightgbm's types are not among those that skops knows
    rows = [(".skops", family, _fitted(name), {}) for name, family in _SKLEARN.items()]
    rows += [(".skops", "xgboost classifier", _fitted("xgboost"), trusted)]
    rows += [(".skops", "lightgbm classifier", _fitted("lightgbm"), trusted)]
    return tuple(rows)


_SKLEARN = {
    "forest": "random forest classifier",
    "svc": "scaler and SVC",
    "logistic": "scaler, PCA and logistic regression",
    "boosting": "histogram gradient boosting, missing values",
    "mlp": "scaler and MLP regressor",
    "kmeans": "k-means",
    "columns": "pipeline with string columns",
    "text": "TF-IDF and logistic regression",
}


def _fitted(name):
    def maker(folder):
        import skops.io

        skops.io.dump(_estimator(name), folder / f"{name}.skops")
        return folder / f"{name}.skops"

    return maker


def _estimator(name):
    """A fitted estimator on scikit-learn's own data."""
    import numpy as np
    import pandas as pd
    from sklearn.cluster import KMeans
    from sklearn.compose import ColumnTransformer
    from sklearn.datasets import load_breast_cancer, load_diabetes
    from sklearn.decomposition import PCA
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler
    from sklearn.svm import SVC

    x, y = load_breast_cancer(return_X_y=True)
    rng = np.random.default_rng(0)
    if name == "columns":
        frame = pd.DataFrame({"age": rng.normal(40, 10, 200), "sex": rng.choice(["m", "f"], 200)})
        encoded = ColumnTransformer([("age", StandardScaler(), ["age"]), ("sex", OneHotEncoder(), ["sex"])])
        return make_pipeline(encoded, LogisticRegression()).fit(frame, (frame.sex == "f") & (frame.age > 40))
    if name == "text":
        texts = ["the cat sat", "the dog ran", "a cat ran fast", "birds fly"] * 5
        return make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(texts, [0, 1, 0, 1] * 5)
    if name == "mlp":
        x, y = load_diabetes(return_X_y=True)
        return make_pipeline(StandardScaler(), MLPRegressor(hidden_layer_sizes=(16,), max_iter=80, random_state=0)).fit(
            x, y
        )
    if name == "xgboost":
        import xgboost

        return xgboost.XGBClassifier(n_estimators=20).fit(x, y)
    if name == "lightgbm":
        import lightgbm

        return lightgbm.LGBMClassifier(n_estimators=20, verbose=-1).fit(x, y)
    if name == "boosting":
        x = np.where(rng.random(x.shape) < 0.05, np.nan, x)
    made = {
        "forest": RandomForestClassifier(30, random_state=0),
        "svc": make_pipeline(StandardScaler(), SVC()),
        "logistic": make_pipeline(StandardScaler(), PCA(5), LogisticRegression()),
        "boosting": HistGradientBoostingClassifier(max_iter=20),
        "kmeans": KMeans(3, n_init=3, random_state=0),
    }
    return made[name].fit(x, y)


_SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
_WORDS = {"vocab_size": 100, "max_position_embeddings": 42}
# Class of the model, class of its configuration, and what the configuration says.
_FAMILIES = {
    "BERT": ("BertModel", "BertConfig", {**_SMALL, **_WORDS}),
    "RoBERTa, question answering": ("RobertaForQuestionAnswering", "RobertaConfig", {**_SMALL, **_WORDS}),
    "DistilBERT, token classification": (
        "DistilBertForTokenClassification",
        "DistilBertConfig",
        {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, **_WORDS},
    ),
    "MPNet": ("MPNetModel", "MPNetConfig", {**_SMALL, **_WORDS}),
    "ViT": ("ViTForImageClassification", "ViTConfig", {**_SMALL, "image_size": 32, "patch_size": 8}),
    "ResNet": (
        "ResNetForImageClassification",
        "ResNetConfig",
        {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic"},
    ),
    "ConvNeXt": (
        "ConvNextForImageClassification",
        "ConvNextConfig",
        {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2, "image_size": 64},
    ),
    "YOLOS": (
        "YolosForObjectDetection",
        "YolosConfig",
        {**_SMALL, "image_size": [32, 48], "patch_size": 8, "num_detection_tokens": 5},
    ),
    "AST, audio classification": (
        "ASTForAudioClassification",
        "ASTConfig",
        {**_SMALL, "patch_size": 8, "frequency_stride": 8, "time_stride": 8, "max_length": 32, "num_mel_bins": 16},
    ),
    "GPT-2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 2,
            "n_positions": 40,
            "vocab_size": 100,
            "bos_token_id": 0,
            "eos_token_id": 1,
        },
    ),
    "Llama": ("LlamaForCausalLM", "LlamaConfig", {**_SMALL, **_WORDS, "num_key_value_heads": 1}),
    "Qwen2": ("Qwen2ForCausalLM", "Qwen2Config", {**_SMALL, **_WORDS, "num_key_value_heads": 1}),
}


def huggingface_rows():
    """Rows of Hugging Face folders, random weights: (source, family, maker, options)."""
    rows = []
    for family in _FAMILIES:
        if family not in ("GPT-2", "Llama", "Qwen2"):
            rows.append(("Hugging Face folder", family, _folder_of(family), {}))
            continue
        for what, task in (("", "text-generation"), (", with cache", "text-generation-with-past")):
            rows.append(("Hugging Face folder", f"{family}{what}", _folder_of(family), {"task": task}))
    return tuple(rows)


def _folder_of(family):
    def maker(folder):
        torch = _torch()
        import transformers

        name, configuration, settings = _FAMILIES[family]
        model = getattr(transformers, name)(getattr(transformers, configuration)(**settings))
        for weight in model.parameters():
            if weight.ndim > 1:  # as they are drawn they are so small that outputs are all alike
                torch.nn.init.normal_(weight, std=0.3 if weight.ndim == 2 else 0.2)
        model.eval().save_pretrained(folder / "model")
        return folder / "model"

    return maker
