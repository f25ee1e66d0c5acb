"""LiteRT (TensorFlow Lite) files: run by TensorFlow's own interpreter, converted by tf2onnx."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from deploykit.errors import InvalidFileError
from deploykit.exporters.diagnosis import reason
from deploykit.exporters.tensorflow_graph import Port, TensorflowModel, onnx_from
from deploykit.exporters.tensorflow_saved import choose

if TYPE_CHECKING:
    from pathlib import Path

    import onnx

    from deploykit.runtime import Feeds, Outputs


def load_lite(path: Path, signature: str | None) -> TensorflowModel:
    """A .tflite file. Inputs and outputs are called as its signature calls them, without one by their tensors.

    Raises InvalidFileError (DK611) for a file that the interpreter refuses, UsageError (DK652) for a signature.
    """
    with warnings.catch_warnings():
        # It announces its move to the package ai-edge-litert.
        warnings.simplefilter("ignore")
        try:
            # By content, since only that is checked before it is used: a cut-off file crashes the other way.
            content = path.read_bytes()
            interpreter = tf.lite.Interpreter(model_content=content)
            interpreter.allocate_tensors()
        except Exception as problem:  # ValueError, RuntimeError by version
            raise InvalidFileError(
                f"{path} cannot be read as a LiteRT model: {reason(problem)}",
                code="DK611",
                file=path,
                hint="the file is damaged, or has operators of a delegate that is not here",
            ) from problem
    called = _names(interpreter, signature, path)
    details = interpreter.get_input_details(), interpreter.get_output_details()
    inputs, outputs = (tuple(_port(detail, called) for detail in side) for side in details)
    renamed = {detail["name"]: called[detail["index"]] for detail in (*details[0], *details[1])}

    def run(feeds: Feeds) -> Outputs:
        for detail, port in zip(details[0], inputs, strict=True):
            interpreter.resize_tensor_input(detail["index"], np.shape(feeds[port.name]))
        interpreter.allocate_tensors()
        for detail, port in zip(details[0], inputs, strict=True):
            interpreter.set_tensor(detail["index"], feeds[port.name])
        interpreter.invoke()
        return {
            port.name: interpreter.get_tensor(detail["index"]) for detail, port in zip(details[1], outputs, strict=True)
        }

    return TensorflowModel(
        inputs,
        outputs,
        run,
        lambda opset: _renamed(onnx_from(opset, tflite_path=str(path)), renamed),
        f"LiteRT in TensorFlow {tf.__version__}",
        # Its image operators know no other layout.
        lambda: "nhwc",
        {
            called[detail["index"]]: detail["quantization"]
            for detail in (*details[0], *details[1])
            if detail["quantization"][0] and np.dtype(detail["dtype"]).kind in "iu"
        },
        lite=content,
    )


def _names(interpreter: Any, signature: str | None, path: Path) -> dict[int, str]:
    """Public name by tensor index."""
    details = [*interpreter.get_input_details(), *interpreter.get_output_details()]
    names = {detail["index"]: str(detail["name"]) for detail in details}
    there = interpreter.get_signature_list()
    if signature is None and len(there) != 1:
        return names
    runner = interpreter.get_signature_runner(choose(there, signature, path))
    ports = [*runner.get_input_details().items(), *runner.get_output_details().items()]
    inner = {detail["index"]: name for name, detail in ports}
    return {index: inner.get(index, name) for index, name in names.items()}


def _port(detail: dict[str, Any], called: dict[int, str]) -> Port:
    shape = detail.get("shape_signature", detail["shape"])
    dtype = "string" if detail["dtype"] in (np.bytes_, np.object_) else np.dtype(detail["dtype"]).name
    return Port(called[detail["index"]], dtype, tuple(None if size < 0 else int(size) for size in shape))


def _renamed(proto: onnx.ModelProto, names: dict[str, str]) -> onnx.ModelProto:
    """The model with the signature's names instead of the tensors'."""
    # A name that is free in the file's sense can be that of an inner tensor.
    inner = {name for node in proto.graph.node for name in (*node.input, *node.output)} - names.keys()
    swapped = {**{name: f"{name}/inner" for name in inner & set(names.values())}, **names}
    for node in proto.graph.node:
        node.input[:] = [swapped.get(name, name) for name in node.input]
        node.output[:] = [swapped.get(name, name) for name in node.output]
    for value in (
        *proto.graph.input,
        *proto.graph.output,
        *proto.graph.value_info,
        *proto.graph.initializer,
    ):
        value.name = swapped.get(value.name, value.name)
    return proto
