"""Keras files (`.keras`, `.h5`): loaded by Keras 3 with safe mode on, after their configuration was read for code."""

from __future__ import annotations

import json
import re
import zipfile
from typing import TYPE_CHECKING, Any

import h5py
import keras
import tensorflow as tf

from deploykit.errors import InvalidFileError, ModelError
from deploykit.exporters.diagnosis import reason
from deploykit.exporters.tensorflow_graph import (
    Port,
    TensorflowModel,
    as_array,
    freeze,
    layout_of,
    onnx_from_frozen,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from deploykit.runtime import Feeds, Outputs

# What a configuration may name without importing anything of the user's.
_KNOWN = ("keras", "tf_keras", "tensorflow", "builtins")
_NUMBERED = re.compile(r"keras_tensor(_\d+)?$")


def load_keras(path: Path, kind: str) -> TensorflowModel:
    """A Keras model file, as `sources.KINDS` calls its kind.

    Raises ModelError (DK650) for a file that would run code (Lambda layers, custom classes), InvalidFileError or
    ModelError (DK611) for one that Keras cannot read, or that has no input shapes.
    """
    _refuse_code(_config(path, kind), path)
    keras.backend.clear_session()  # layer names are numbered through the process: the same file, the same names
    try:
        loaded = keras.models.load_model(path, compile=False, safe_mode=True)
    except Exception as problem:  # Keras raises ValueError, TypeError, KeyError, OSError for damaged files
        raise InvalidFileError(
            f"{path} cannot be read by Keras {keras.__version__}: {reason(problem)}",
            code="DK611",
            file=path,
            hint="save it again with Keras 3: model.save('model.keras')",
        ) from problem
    model = _functional(loaded, path)
    names = [_input_name(tensor) for tensor in model.inputs]
    inputs = [Port(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in zip(names, model.inputs, strict=True)]
    outputs = [
        Port(name, tensor.dtype, tuple(tensor.shape))
        for name, tensor in zip(_output_names(model, names), model.outputs, strict=True)
    ]
    return _as_model(model, tuple(inputs), tuple(outputs))


def _as_model(model: Any, inputs: tuple[Port, ...], outputs: tuple[Port, ...]) -> TensorflowModel:
    def call(arrays: list[Any]) -> list[Any]:
        given = keras.tree.pack_sequence_as(model.input, arrays)
        return list(keras.tree.flatten(model(given, training=False)))

    def run(feeds: Feeds) -> Outputs:
        values = call([tf.constant(feeds[port.name]) for port in inputs])
        return {port.name: as_array(value) for port, value in zip(outputs, values, strict=True)}

    signature = [tf.TensorSpec(port.shape, port.dtype, f"input_{at}") for at, port in enumerate(inputs)]
    function = tf.function(lambda *arrays: call(list(arrays)), input_signature=signature).get_concrete_function()
    captured = {tensor.name for tensor in function.graph.internal_captures}
    frozen = freeze(
        model,
        function,
        _named([t.name for t in function.inputs if t.name not in captured], inputs),
        _named([t.name for t in function.outputs], outputs),
    )
    return TensorflowModel(
        inputs,
        outputs,
        run,
        lambda opset: onnx_from_frozen(frozen, opset),
        f"Keras {keras.__version__} on TensorFlow {tf.__version__}",
        lambda: layout_of(frozen.graph_def),
        frozen=frozen,
    )


def _named(tensors: list[str], ports: tuple[Port, ...]) -> dict[str, str]:
    return {tensor: port.name for tensor, port in zip(tensors, ports, strict=True)}


def _config(path: Path, kind: str) -> Any:
    """The model's configuration, read without Keras."""
    try:
        if kind == "keras":
            with zipfile.ZipFile(path) as archive:
                return json.loads(archive.read("config.json"))
        with h5py.File(path, "r") as file:
            text = file.attrs.get("model_config")
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as problem:
        raise InvalidFileError(f"{path} is damaged: {reason(problem)}", code="DK611", file=path) from problem
    if text is None:
        raise ModelError(
            f"{path} has weights only, without the model that uses them",
            code="DK611",
            file=path,
            hint="in your own code: build the model, model.load_weights(...), model.save('model.keras')",
        )
    return json.loads(text)


def _refuse_code(config: Any, path: Path) -> None:
    """Raises ModelError (DK650) for what only runs as code: safe mode covers the lambdas, and not every format."""
    for entry in _entries(config):
        name = str(entry["class_name"])
        module = entry.get("module") or "keras"
        if name not in ("Lambda", "__lambda__", "function") and str(module).partition(".")[0] in _KNOWN:
            continue
        settings = entry.get("config")
        layer = settings.get("name", name) if isinstance(settings, dict) else name
        what = f"the {name} layer {layer!r}" if name == "Lambda" else f"{module}.{name}"
        raise ModelError(
            f"{path} has {what}, which is Python code: it was not loaded",
            code="DK650",
            file=path,
            node=str(layer),
            op=name,
            hint="replace it by Keras layers (Rescaling, keras.ops in a Functional model) and save the model again",
        )


def _entries(config: Any) -> Iterator[dict[str, Any]]:
    """Every object of the configuration that names a class."""
    waiting = [config]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            if isinstance(item.get("class_name"), str):
                yield item
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item


def _functional(model: Any, path: Path) -> Any:
    """The model with known inputs and outputs; tf2onnx and names need more than a Sequential tells."""
    if isinstance(model, keras.Sequential) and model.built:
        return keras.Model(model.inputs, model.outputs, name=model.name)
    if isinstance(model, keras.Model) and getattr(model, "inputs", None):
        return model
    raise ModelError(
        f"{path} was saved before it was built: it has neither input shapes nor weights",
        code="DK611",
        file=path,
        hint="call the model once, or give it a keras.Input, then save it again",
    )


def _input_name(tensor: Any) -> str:
    """The name that the model's author gave; Keras's own numbers for tensors change from process to process."""
    name = str(tensor.name)
    return str(tensor._keras_history.operation.name) if _NUMBERED.match(name) else name


def _output_names(model: Any, taken: list[str]) -> list[str]:
    """Keys where the model returns a dict, otherwise the names of the layers that give the outputs; all different."""
    structure = getattr(model, "output", None)
    if isinstance(structure, dict) and all(not isinstance(value, dict | list) for value in structure.values()):
        names = sorted(map(str, structure))  # Keras flattens a dict in this order
    else:
        names = [str(tensor._keras_history.operation.name) for tensor in model.outputs]
    found: list[str] = []
    for at, name in enumerate(names):
        name = f"{name}_out" if name in taken else name
        found.append(f"{name}_{at}" if names.count(name) > 1 else name)
    return found
