"""Booleans that become numbers, in a form that OpenVINO's low-precision pass does not take for quantized data."""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset8


def keep_masks(model: ov.Model) -> int:
    """Replaces Convert(boolean) by Select(boolean, 1, 0) in a quantized model; returns how many were replaced.

    An attention mask `cast(padding) * -3.4e38` is Convert and Multiply, which is how dequantization looks: where an Add
    reads it, the pass gives both operands of that Add its scale, and scores / -3.4e38 are all 0. Attention is uniform
    then, and nothing says so: 0.6 dB against the ONNX model, 140 dB by Select (OpenVINO 2026.4.1, CPU; no public issue
    names it). A float model is left as it is: the pass does not run on it.
    """
    nodes = model.get_ordered_ops()
    if not any(node.get_type_name() == "FakeQuantize" for node in nodes):
        return 0
    found = [node for node in nodes if _is_mask(node)]
    for node in found:
        kind = np.dtype(node.get_element_type().to_dtype())
        chosen = opset8.select(node.input_value(0), np.array(1, kind), np.array(0, kind))
        chosen.set_friendly_name(node.get_friendly_name())
        names = node.output(0).get_names()
        node.output(0).replace(chosen.output(0))
        chosen.output(0).set_names(names)
    return len(found)


def _is_mask(node: ov.Node) -> bool:
    # The plugin computes booleans as u8, which is what makes them look quantized.
    return (
        node.get_type_name() == "Convert"
        and node.get_input_element_type(0) == ov.Type.boolean
        and node.get_element_type() in (ov.Type.f32, ov.Type.f16)
    )
