"""The network that TensorRT-RTX's parser makes of a model: what is told of it before anything is built."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorrt_rtx as trt

from deploykit.converters.tensorrt_rtx.parser import NAME
from deploykit.report import Finding, failure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deploykit.artifact import TensorSpec

_DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "bfloat16",
    "INT8": "int8",
    "UINT8": "uint8",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
    "FP8": "float8_e4m3fn",
    "FP4": "float4_e2m1fn",
    "INT4": "int4",
}


def interface_changes(network: Any, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> list[Finding]:
    """The engine's tensors against the model's: a renamed or retyped one is an error, never silent."""
    built = {
        tensor.name: _DTYPES.get(tensor.dtype.name, tensor.dtype.name.lower())
        for tensor in [
            *(network.get_input(index) for index in range(network.num_inputs)),
            *(network.get_output(index) for index in range(network.num_outputs)),
        ]
    }
    return [
        failure(
            "DK529",
            f"tensor {spec.name!r} is {spec.dtype} in the model and {built.get(spec.name, 'missing')} in the engine",
            target=NAME,
            tensor=spec.name,
            hint="change its type in the model, or remove the tensor when nothing uses it",
        )
        for spec in [*inputs, *outputs]
        if built.get(spec.name) != spec.dtype
    ]


def shape_inputs(network: Any) -> list[str]:
    """Inputs whose values decide shapes: an engine would need bounds of the values, which our profiles do not hold."""
    tensors = [network.get_input(index) for index in range(network.num_inputs)]
    return [str(tensor.name) for tensor in tensors if tensor.is_shape_tensor]


def allow_decomposition(network: Any) -> None:
    """Attention without a fused kernel becomes its operators; without this the builder refuses its shape or type."""
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if layer.type == trt.LayerType.ATTENTION_INPUT:
            layer.__class__ = trt.IAttentionInputLayer  # the bindings' way to the layer's own methods
            layer.attention.decomposable = True
