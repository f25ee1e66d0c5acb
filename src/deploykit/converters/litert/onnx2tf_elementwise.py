"""Operators of one element or one axis in TensorFlow, which broadcasts as ONNX does (runs in the managed environment).

onnx2tf moves the axes of one operand to where it believes the channels of the other to be; at a node cut off from the
convolutions around it that is a guess.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


def _named(name: str) -> Callable[[Mapping[str, Any], Sequence[Any]], Any]:
    """A function of TensorFlow's that takes the inputs in ONNX's order, and has no attributes."""

    def compute(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> Any:
        import tensorflow as tf

        function = tf
        for part in name.split("."):
            function = getattr(function, part)
        return function(*map(tf.convert_to_tensor, inputs))

    return compute


def _divide(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> Any:
    """Integers are cut off towards 0, as in C."""
    import tensorflow as tf

    x, y = map(tf.convert_to_tensor, inputs)
    return tf.truediv(x, y) if x.dtype.is_floating else tf.truncatediv(x, y)


def _several(name: str) -> Callable[[Mapping[str, Any], Sequence[Any]], Any]:
    def compute(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> Any:
        import tensorflow as tf

        result, *others = map(tf.convert_to_tensor, inputs)
        for other in others:
            result = getattr(tf, name)(result, other)
        return result

    return compute


def _power(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> Any:
    import tensorflow as tf

    x, y = map(tf.convert_to_tensor, inputs)
    return tf.pow(x, tf.cast(y, x.dtype))


def _clip(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> Any:
    """Bounds are attributes up to opset 6, inputs afterwards."""
    import tensorflow as tf

    x = tf.convert_to_tensor(inputs[0])
    low, high = (*inputs[1:], None, None)[:2] if len(inputs) > 1 else (attributes.get("min"), attributes.get("max"))
    if low is not None:
        x = tf.maximum(x, tf.cast(low, x.dtype))
    return x if high is None else tf.minimum(x, tf.cast(high, x.dtype))


def _hard_sigmoid(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> Any:
    import tensorflow as tf

    scaled = attributes.get("alpha", 0.2) * inputs[0] + attributes.get("beta", 0.5)
    return tf.maximum(0.0, tf.minimum(1.0, scaled))


def _hard_swish(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> Any:
    x = inputs[0]
    return x * _hard_sigmoid({"alpha": 1 / 6, "beta": 0.5}, [x])


def _leaky_relu(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> Any:
    import tensorflow as tf

    return tf.where(inputs[0] < 0, inputs[0] * np.float32(attributes.get("alpha", 0.01)), inputs[0])


def _softmax(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> Any:
    import tensorflow as tf

    return tf.nn.softmax(inputs[0], axis=attributes.get("axis", -1))


def _normalized(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> Any:
    """BatchNormalization in inference, over axis 1."""
    import tensorflow as tf

    x, scale, bias, mean, variance = map(tf.convert_to_tensor, inputs)
    shape = [1, -1, *[1] * (len(x.shape) - 2)]
    factor = scale / tf.sqrt(variance + attributes.get("epsilon", 1e-5))
    return x * tf.reshape(factor, shape) + tf.reshape(bias - mean * factor, shape)


def _reduced(name: str) -> Callable[[Mapping[str, Any], Sequence[Any]], Any]:
    def compute(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> Any:
        import tensorflow as tf

        given = inputs[1] if len(inputs) > 1 else attributes.get("axes")
        axes = None if given is None else [int(axis) for axis in np.asarray(given).ravel()]
        if not axes and attributes.get("noop_with_empty_axes"):
            return tf.identity(inputs[0])
        return getattr(tf, name)(inputs[0], axis=axes or None, keepdims=bool(attributes.get("keepdims", 1)))

    return compute


def _mean_of_picture(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> Any:
    import tensorflow as tf

    return tf.reduce_mean(inputs[0], axis=list(range(2, len(inputs[0].shape))), keepdims=True)


ELEMENTWISE: dict[str, Callable[[Mapping[str, Any], Sequence[Any]], Any]] = {
    "Abs": _named("abs"),
    "Add": _named("add"),
    "And": _named("logical_and"),
    "BatchNormalization": _normalized,
    "Clip": _clip,
    "Div": _divide,
    "Equal": _named("equal"),
    "Erf": _named("math.erf"),
    "Exp": _named("exp"),
    "GlobalAveragePool": _mean_of_picture,
    "Greater": _named("greater"),
    "GreaterOrEqual": _named("greater_equal"),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "Identity": _named("identity"),
    "LeakyRelu": _leaky_relu,
    "Less": _named("less"),
    "LessOrEqual": _named("less_equal"),
    "Log": _named("math.log"),
    "MatMul": _named("matmul"),
    "Max": _several("maximum"),
    "Min": _several("minimum"),
    "Mul": _named("multiply"),
    "Neg": _named("negative"),
    "Not": _named("logical_not"),
    "Or": _named("logical_or"),
    "Pow": _power,
    "ReduceMax": _reduced("reduce_max"),
    "ReduceMean": _reduced("reduce_mean"),
    "ReduceMin": _reduced("reduce_min"),
    "ReduceProd": _reduced("reduce_prod"),
    "ReduceSum": _reduced("reduce_sum"),
    "Relu": _named("nn.relu"),
    "Sigmoid": _named("sigmoid"),
    "Softmax": _softmax,
    "Sqrt": _named("sqrt"),
    "Sub": _named("subtract"),
    "Tanh": _named("tanh"),
    "Where": _named("where"),
}
