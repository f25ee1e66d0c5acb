"""Small TensorFlow, Keras and LiteRT models with their own answers; run in the TensorFlow worker, not in pytest."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2


def make(folder: str) -> None:
    """Writes every model, and `<name>.npz` with inputs and what the framework answers."""
    root = Path(folder)
    keras.utils.set_random_seed(1)
    _keras(root)
    _saved(root)
    _saved_by_tf1(root)
    _lite(root)


def _answers(path: Path, inputs: dict[str, np.ndarray], outputs: dict[str, object]) -> None:
    arrays = {f"out_{name}": np.asarray(value) for name, value in outputs.items()}
    np.savez(path, **{f"in_{name}": value for name, value in inputs.items()}, **arrays)


def _keras(root: Path) -> None:
    rng = np.random.default_rng(0)
    conv = keras.Sequential([keras.Input((12, 12, 3)), keras.layers.Conv2D(8, 1)])  # catalogue: 5a, 5b
    conv.save(root / "conv.keras")
    conv.save(root / "conv.h5")
    x = rng.normal(size=(2, 12, 12, 3)).astype(np.float32)
    _answers(root / "conv.npz", {"input_layer": x}, {"conv2d": conv(x)})

    a, b = keras.Input((None, 4), name="a"), keras.Input((4,), name="b")
    outputs = {"sum": keras.layers.Dense(3)(a), "pooled": keras.layers.LSTM(5)(a), "twice": keras.layers.Add()([b, b])}
    keras.Model({"b": b, "a": a}, outputs).save(root / "two.keras")

    keras.Sequential([keras.layers.Dense(3)]).save(root / "shapeless.keras")
    trap = root / "marker"
    code = keras.Sequential(
        [keras.Input((4,)), keras.layers.Lambda(lambda v, p=str(trap): (__import__("os").mkdir(p), v)[1])]
    )
    code.save(root / "lambda.keras")
    code.save(root / "lambda.h5")
    trap.rmdir()

    words = keras.layers.TextVectorization(max_tokens=8, output_sequence_length=4)
    words.adapt(["a b c", "b c d"])
    text = keras.Sequential([keras.Input((1,), dtype="string"), words, keras.layers.Embedding(8, 2)])
    text.save(root / "text.keras")


class _Two(tf.Module):
    """Two signatures on one variable."""

    def __init__(self) -> None:
        super().__init__()
        self.w = tf.Variable(tf.reshape(tf.range(12.0), (4, 3)))
        self.m = tf.Variable(tf.zeros((4, 3)))

    @tf.function(input_signature=[tf.TensorSpec((None, 4), tf.float32, name="x")])
    def scores(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"scores": x @ self.w}

    @tf.function(input_signature=[tf.TensorSpec((None, None, 4), tf.float32, name="rows")])
    def pooled(self, rows: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"mean": tf.reduce_mean(rows, 1), "rows_out": rows * 2}


def _saved(root: Path) -> None:
    module = _Two()
    module.optimizer = tf.Module()
    tf.saved_model.save(module, str(root / "two"), signatures={"scores": module.scores, "pooled": module.pooled})
    tf.saved_model.save(module, str(root / "usual"), signatures=module.scores)
    x = np.float32([[1, 2, 3, 4], [0, -1, 0, 1]])
    _answers(root / "usual.npz", {"x": x}, {"scores": module.scores(x)["scores"]})
    # Optimizers of older Keras left slots on objects that TF2's loader makes as plain ones, and then it fails.
    tf.saved_model.save(module, str(root / "slots"), signatures=module.scores)
    file = root / "slots" / "saved_model.pb"
    saved = saved_model_pb2.SavedModel()
    saved.ParseFromString(file.read_bytes())
    nodes = saved.meta_graphs[0].object_graph_def.nodes
    named = {child.local_name: child.node_id for child in nodes[0].children}
    holder = next(at for at, node in enumerate(nodes) if at and node.HasField("user_object"))
    nodes[holder].slot_variables.add(
        original_variable_node_id=named["w"], slot_name="m", slot_variable_node_id=named["m"]
    )
    file.write_bytes(saved.SerializeToString())
    try:
        tf.saved_model.load(str(root / "slots"))
    except AttributeError:
        pass
    else:
        raise AssertionError("TF2's loader takes it: this tests nothing")


def _saved_by_tf1(root: Path) -> None:
    v1 = tf.compat.v1
    with v1.Session(graph=tf.Graph()) as session:
        x = v1.placeholder(tf.float32, (None, 3), "x")
        table = v1.get_variable("w", initializer=np.float32([[1, 2], [3, 4], [5, 6]]), use_resource=False)
        y = tf.nn.relu(x @ table, name="y")
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, str(root / "tf1"), {"image": x}, {"label": y})
        value = np.float32([[1, -1, 1], [-1, 0, 0]])
        _answers(root / "tf1.npz", {"image": value}, {"label": session.run(y, {x: value})})


def _lite(root: Path) -> None:
    net = keras.Sequential(
        [
            keras.Input((8, 8, 3), name="image"),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(40),
        ]
    )
    (root / "float.tflite").write_bytes(tf.lite.TFLiteConverter.from_keras_model(net).convert())
    hybrid = tf.lite.TFLiteConverter.from_keras_model(net)
    hybrid.optimizations = [tf.lite.Optimize.DEFAULT]
    (root / "hybrid.tflite").write_bytes(hybrid.convert())
    rng = np.random.default_rng(0)
    whole = tf.lite.TFLiteConverter.from_keras_model(net)
    whole.optimizations = [tf.lite.Optimize.DEFAULT]
    whole.representative_dataset = lambda: ([rng.normal(size=(1, 8, 8, 3)).astype(np.float32)] for _ in range(16))
    whole.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    whole.inference_input_type = whole.inference_output_type = tf.int8
    (root / "int8.tflite").write_bytes(whole.convert())
