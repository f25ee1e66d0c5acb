"""The network that TensorRT-RTX's parser makes of a model: what is told of it before anything is built."""

from __future__ import annotations

from typing import Any


def shape_inputs(network: Any) -> list[str]:
    """Inputs whose values decide shapes: an engine would need bounds of the values, which our profiles do not hold."""
    tensors = [network.get_input(index) for index in range(network.num_inputs)]
    return [str(tensor.name) for tensor in tensors if tensor.is_shape_tensor]
