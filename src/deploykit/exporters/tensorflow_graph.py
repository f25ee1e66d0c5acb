"""TensorFlow graphs to ONNX through tf2onnx: frozen, named by the model's own inputs and outputs, reproducible."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from tf2onnx import optimizer, tf_loader, tfonnx, utils

from deploykit.errors import VendorError
from deploykit.exporters.diagnosis import reason

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx

    from deploykit.runtime import Feeds, Outputs

# tf2onnx 1.17 writes nothing newer.
HIGHEST_OPSET = 18
# Which of equal nodes it keeps differs from run to run: `simplify` takes them away, reproducibly.
_OPTIMIZERS = {name: made for name, made in optimizer._get_optimizers().items() if name != "merge_duplication"}
_LARGEST_MESSAGE = ("exceeds maximum protobuf size", "string too long", "Exceeded maximum protobuf size")


@dataclasses.dataclass(frozen=True, slots=True)
class Port:
    """An input or output as the source declares it: numpy dtype name, open sizes as None; shape None: rank unknown."""

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None


@dataclasses.dataclass(slots=True)
class TensorflowModel:
    """A loaded source: what it takes and gives, how it runs in its own framework, and how it becomes ONNX.

    run: outputs by name, one call in the source's framework. convert: the ONNX of an opset, named as the ports.
    layout: of image tensors ("nhwc", "nchw"), None where nothing in the model tells.
    scales: (scale, zero point) of quantized inputs and outputs by name.
    frozen: the graph, None where there is none (LiteRT files). lite: the content of a LiteRT file.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    run: Callable[[Feeds], Outputs]
    convert: Callable[[int], onnx.ModelProto]
    engine: str
    layout: Callable[[], str | None]
    scales: dict[str, tuple[float, int]] = dataclasses.field(default_factory=dict)
    frozen: Frozen | None = None
    lite: bytes | None = None


@dataclasses.dataclass(slots=True)
class Frozen:
    """A graph with its weights as constants. inputs, outputs: public name by tensor name (`x:0`), in order."""

    graph_def: Any
    inputs: dict[str, str]
    outputs: dict[str, str]
    tables: dict[bytes, Any]


def freeze(trackable: Any, function: Any, inputs: dict[str, str], outputs: dict[str, str]) -> Frozen:
    """A concrete function with the values of its variables; `trackable` owns them and its lookup tables.

    Raises VendorError (DK651) when TensorFlow cannot freeze it.
    """
    with tf.device("/cpu:0"):
        try:
            graph_def, tables = tf_loader.from_trackable(trackable, function, list(inputs), list(outputs), False)
        except Exception as problem:  # TensorFlow raises ValueError and classes of its own
            raise not_converted(problem) from problem
    return Frozen(graph_def, inputs, outputs, tables)


def onnx_from_frozen(frozen: Frozen, opset: int) -> onnx.ModelProto:
    """The ONNX graph; operators without an ONNX form stay in it under their TensorFlow names.

    Raises VendorError (DK651) when tf2onnx fails.
    """
    names = set(tf_loader.remove_redundant_inputs(frozen.graph_def, list(frozen.inputs)))
    taken = [name for name in frozen.inputs if name in names]
    return onnx_from(
        opset,
        graph_def=frozen.graph_def,
        input_names=taken,
        output_names=list(frozen.outputs),
        tensors_to_rename={**{name: frozen.inputs[name] for name in taken}, **frozen.outputs},
        initialized_tables=frozen.tables,
    )


def onnx_from(opset: int, *, graph_def: Any = None, **facts: Any) -> onnx.ModelProto:
    """What tf2onnx makes of a graph, or of `tflite_path`; raises VendorError (DK651)."""
    # Names of new nodes are numbered through the whole process: each export starts anew, for the same bytes.
    utils.INTERNAL_NAME = 1
    try:
        with tf.device("/cpu:0"), tf.Graph().as_default() as made:
            if graph_def is not None:
                tf.import_graph_def(graph_def, name="")
            converted = tfonnx.process_tf_graph(made, opset=opset, continue_on_error=True, **facts)
            proto: onnx.ModelProto = optimizer.optimize_graph(converted, True, _OPTIMIZERS).make_model("main")
    except Exception as problem:  # tf2onnx raises what its handlers raise: AssertionError, KeyError, ValueError
        raise not_converted(problem) from problem
    return proto


def not_converted(problem: Exception) -> VendorError:
    """The error when TensorFlow or tf2onnx gave up."""
    if any(text in str(problem) for text in _LARGEST_MESSAGE):
        return VendorError(
            "the model has more than 2 GB, which tf2onnx takes only as a whole",
            code="DK651",
            hint="export it from its framework in parts",
        )
    return VendorError(
        f"tf2onnx could not convert the model: {reason(problem)}",
        code="DK651",
        hint="another opset can have a form for the operator (--opset 13 to 18); or export a part of the model",
    )


def layout_of(graph_def: Any) -> str | None:
    """The one data format of the graph's image operators, in lower case; None without one, or with several."""
    nodes = [*graph_def.node, *(node for function in graph_def.library.function for node in function.node_def)]
    found = {node.attr["data_format"].s.decode() for node in nodes if "data_format" in node.attr}
    # BiasAdd says NHWC for a matrix too: only what slides over an image counts.
    sliding = {node.op for node in nodes if node.op.startswith(("Conv2D", "DepthwiseConv2d", "MaxPool", "AvgPool"))}
    return found.pop().lower() if len(found) == 1 and sliding else None


def dtype_of(tensor: Any) -> str:
    """The numpy name of a TensorFlow dtype."""
    return "string" if tensor.dtype == tf.string else str(tf.as_dtype(tensor.dtype).name)


def sizes_of(shape: Any) -> tuple[int | None, ...] | None:
    """A TensorShape as Python values; None when the rank is unknown."""
    return None if tf.TensorShape(shape).rank is None else tuple(tf.TensorShape(shape).as_list())


def as_array(value: Any) -> Any:
    """A tensor as an array; strings as Python text, as onnxruntime gives them."""
    array = value.numpy() if hasattr(value, "numpy") else value
    if getattr(array, "dtype", None) is not None and array.dtype == object:
        texts = [item.decode("utf-8", "replace") if isinstance(item, bytes) else item for item in array.ravel()]
        return np.array(texts, dtype=object).reshape(array.shape)
    return array
