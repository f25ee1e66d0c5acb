"""What stands in for onnx2tf 1.29 at single nodes, in TensorFlow: operators that it gets wrong by themselves.

A Transpose or Reshape of what a convolution gave, cut off from it, stops onnx2tf or comes out in another order. Each is
a function of the node and its inputs, TensorFlow tensors or numpy constants (runs in the managed environment).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import helper, numpy_helper

from deploykit.converters.litert.onnx2tf_elementwise import ELEMENTWISE
from deploykit.converters.litert.onnx2tf_recurrent import gru, lstm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import onnx


def move_of(part: onnx.ModelProto) -> Callable[[Any], Any] | None:
    """What computes a model of one node, given its inputs; None where the operator is not one of these."""
    node = part.graph.node[0]
    function = _MOVES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    if function is None:
        return None
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in part.graph.initializer}
    places = {value.name: place for place, value in enumerate(part.graph.input)}

    def compute(given: Any) -> Any:
        tensors = list(given) if isinstance(given, (list, tuple)) else [given]
        inputs = [
            None if not name else constants[name] if name in constants else tensors[places[name]] for name in node.input
        ]
        found = function(attributes, inputs)
        results = dict(zip(node.output, found if isinstance(found, list) else [found], strict=False))
        return [results[value.name] for value in part.graph.output]

    return compute


def _transpose(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> Any:
    import tensorflow as tf

    return tf.transpose(inputs[0], attributes.get("perm"))


def _reshape(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> Any:
    """A 0 keeps the size of its axis, unless `allowzero` (ONNX, Reshape-14)."""
    import tensorflow as tf

    x, shape = inputs
    keeps = not attributes.get("allowzero", 0)
    sizes = tf.shape(x)
    if not isinstance(shape, np.ndarray):
        if not keeps:
            return tf.reshape(x, shape)
        shape = tf.cast(shape, tf.int32)
        count = shape.shape[0]
        own = tf.concat([sizes, tf.ones([max(count - len(x.shape), 0)], tf.int32)], 0)[:count]
        return tf.reshape(x, tf.where(shape == 0, own, shape))
    wanted = [
        (sizes[axis] if x.shape[axis] is None else x.shape[axis]) if size == 0 and keeps else int(size)
        for axis, size in enumerate(shape.tolist())
    ]
    return tf.reshape(x, tf.stack(wanted) if wanted else [])


def _axes(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> list[int] | None:
    """An attribute up to opset 12, an input afterwards."""
    if len(inputs) > 1 and inputs[1] is not None:
        return [int(axis) for axis in np.asarray(inputs[1]).ravel()]
    given = attributes.get("axes")
    return None if given is None else list(given)


def _squeeze(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> Any:
    import tensorflow as tf

    return tf.squeeze(inputs[0], _axes(attributes, inputs))


def _unsqueeze(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> Any:
    import tensorflow as tf

    x, axes = inputs[0], _axes(attributes, inputs) or []
    rank = len(x.shape) + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        x = tf.expand_dims(x, axis)
    return x


def _gather(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> Any:
    """Negative indices count from the end, which TensorFlow's do not."""
    import tensorflow as tf

    x, indices = inputs
    axis = attributes.get("axis", 0)
    size = x.shape[axis] if x.shape[axis] is not None else tf.cast(tf.shape(x)[axis], indices.dtype)
    if isinstance(indices, np.ndarray):
        indices = indices if (indices >= 0).all() else tf.where(indices < 0, indices + size, indices)
    else:
        indices = tf.where(indices < 0, indices + tf.cast(size, indices.dtype), indices)
    return tf.gather(x, indices, axis=axis)


def _concat(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> Any:
    import tensorflow as tf

    return tf.concat([tf.convert_to_tensor(tensor) for tensor in inputs], attributes["axis"])


def _slice(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> Any:
    """Constant bounds; a negative step is left to onnx2tf."""
    import tensorflow as tf

    x = inputs[0]
    named = [attributes.get(name) for name in ("starts", "ends", "axes", "steps")]
    bounds: list[Any] = [*inputs[1:], None, None][:4] if len(inputs) > 1 else named
    starts, ends, axes, steps = bounds
    if any(part is not None and not isinstance(part, (np.ndarray, list)) for part in bounds):
        raise NotImplementedError("a Slice whose bounds are computed")
    count = len(starts)
    parts: list[Any] = [slice(None)] * len(x.shape)
    for start, end, axis, step in zip(
        starts, ends, range(count) if axes is None else axes, [1] * count if steps is None else steps, strict=True
    ):
        if step < 1:
            raise NotImplementedError("a Slice that goes backwards")
        limit = np.iinfo(np.int32).max
        stop = None if end >= limit else int(end)
        parts[int(axis)] = slice(max(int(start), -limit), stop, int(step))
    return tf.convert_to_tensor(x)[tuple(parts)]


def _shape(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> Any:
    import tensorflow as tf

    return tf.shape(inputs[0], out_type=tf.int64)[attributes.get("start", 0) : attributes.get("end")]


def _cast(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> Any:
    import tensorflow as tf

    return tf.cast(inputs[0], tf.as_dtype(helper.tensor_dtype_to_np_dtype(attributes["to"])))


_MOVES: dict[str, Callable[[Mapping[str, Any], Sequence[Any]], Any]] = {
    "Cast": _cast,
    "Concat": _concat,
    "GRU": gru,
    "Gather": _gather,
    "LSTM": lstm,
    "Reshape": _reshape,
    "Shape": _shape,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    **ELEMENTWISE,
}
