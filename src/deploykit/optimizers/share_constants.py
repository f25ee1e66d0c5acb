"""Stores equal constants once, and constants of the main graph as initializers."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from deploykit.optimizers.constants import Constants
from deploykit.optimizers.manager import Pass

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from deploykit.optimizers.constants import Array

# Of larger tensors some elements are compared first: reading all weights of a large model takes its time.
_SAMPLE = 1024
_INITIALIZERS_ALONE = 4


class ShareConstants(Pass):
    """One constant for equal ones of a graph (dtype, shape, bytes); Constant nodes of the main graph as initializers.

    A constant that a caller may replace, that is an output, or that training updates keeps its own. Files of IR
    version 3 keep Constant nodes: an initializer would have to be an input.
    """

    def run(self, model: ir.Model) -> bool:
        """Whether a constant was moved or shared."""
        constants = Constants(model)
        changed = _lift(model, constants) if model.ir_version >= _INITIALIZERS_ALONE else False
        for scope in (model.graph, *model.graph.subgraphs()):
            groups: dict[Hashable, list[ir.Value]] = {}
            made = [node.outputs[0] for node in scope if node.op_type == "Constant" and not node.domain]
            for value in (*scope.initializers.values(), *made):
                tensor = constants.tensor(value)
                if tensor is None or tensor.dtype == ir.DataType.STRING or not value.uses():
                    continue
                replaceable = value.is_graph_input() and model.ir_version >= _INITIALIZERS_ALONE
                if not replaceable and not value.is_graph_output() and not _is_updated(value):
                    groups.setdefault((tensor.dtype, tuple(tensor.shape.numpy())), []).append(value)
            for values in groups.values():
                if len(values) > 1:
                    changed = _share(values, constants) or changed
        return changed


def _lift(model: ir.Model, constants: Constants) -> bool:
    """Constant nodes of the main graph as initializers of the same name."""
    changed = False
    for node in list(model.graph):
        if node.op_type != "Constant" or node.domain not in ("", "ai.onnx"):
            continue
        output = node.outputs[0]
        tensor = constants.tensor(output)
        if tensor is None or output.is_graph_output() or not output.uses():
            continue
        stored = ir.Value(name=output.name, const_value=tensor, type=ir.TensorType(tensor.dtype), shape=_shape(tensor))
        output.replace_all_uses_with(stored)
        model.graph.remove(node, safe=True)
        output.name = None
        model.graph.register_initializer(stored)
        changed = True
    return changed


def _is_updated(value: ir.Value) -> bool:
    """Read by a BatchNormalization in training: onnxruntime writes its new statistics over the old ones."""
    return any(use.node.op_type == "BatchNormalization" and len(use.node.outputs) > 1 for use in value.uses())


def _shape(tensor: ir.TensorProtocol) -> ir.Shape:
    return ir.Shape(tensor.shape.numpy())


def _share(values: list[ir.Value], constants: Constants) -> bool:
    changed = False
    # A few elements tell most tensors apart; only those that agree there are read whole.
    for alike in _grouped(values, constants, lambda array: array.reshape(-1)[:: max(1, array.size // _SAMPLE)]):
        for first, *others in _grouped(alike, constants, lambda array: array) if len(alike) > 1 else []:
            for value in others:
                value.replace_all_uses_with(first)
                changed = True
    return changed


def _grouped(values: list[ir.Value], constants: Constants, part: Callable[[Array], Array]) -> list[list[ir.Value]]:
    groups: dict[bytes, list[ir.Value]] = {}
    for value in values:
        array = constants.array(value)
        if array is not None:
            content = np.ascontiguousarray(part(array)).reshape(-1).view(np.uint8)
            groups.setdefault(hashlib.blake2b(content.data, digest_size=16).digest(), []).append(value)
    return list(groups.values())
