"""Sparse tensors as dense ones: the graph library has none and would drop them without a word."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from deploykit.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

# A few values may declare a shape of any size: what the dense form takes is bounded.
_MOST_BYTES = 1 << 30


def make_dense(model: onnx.ModelProto, path: Path) -> None:
    """Replaces sparse initializers and `sparse_value` of Constant nodes, in place, in every graph and function.

    Raises ModelError (DK116) for indices outside the shape and for dense forms above 1 GiB.
    """
    _in_graph(model.graph, path)
    for function in model.functions:
        _in_nodes(function.node, path)


def _in_graph(graph: onnx.GraphProto, path: Path) -> None:
    for sparse in graph.sparse_initializer:
        graph.initializer.append(_dense(sparse, path, f"sparse initializer {sparse.values.name!r}"))
    del graph.sparse_initializer[:]
    _in_nodes(graph.node, path)


def _in_nodes(nodes: Iterable[onnx.NodeProto], path: Path) -> None:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.name == "sparse_value" and attribute.HasField("sparse_tensor"):
                what = f"sparse value of Constant node {(node.name or ''.join(node.output))!r}"
                attribute.t.CopyFrom(_dense(attribute.sparse_tensor, path, what))
                attribute.ClearField("sparse_tensor")
                attribute.name, attribute.type = "value", onnx.AttributeProto.TENSOR
            for inner in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                _in_graph(inner, path)


def _dense(sparse: onnx.SparseTensorProto, path: Path, what: str) -> onnx.TensorProto:
    def refusal(why: str) -> ModelError:
        return ModelError(f"{path.name}: {what} {why}", code="DK116", file=path, tensor=sparse.values.name or None)

    shape = tuple(sparse.dims)
    if any(dim < 0 for dim in shape):
        raise refusal(f"has a negative dimension: {list(shape)}")
    folder = str(path.parent)
    values: Any = onnx.numpy_helper.to_array(sparse.values, folder)
    indices: Any = onnx.numpy_helper.to_array(sparse.indices, folder)
    needed = math.prod(shape) * values.dtype.itemsize
    if needed > _MOST_BYTES:
        raise refusal(f"takes {needed} bytes in dense form, and at most {_MOST_BYTES} are accepted")
    if indices.dtype != np.int64 or indices.shape not in ((values.size,), (values.size, len(shape))):
        raise refusal(f"has {values.size} values and indices of shape {list(indices.shape)}")
    # ONNX writes indices as positions in the flattened tensor, or as one coordinate per axis.
    limit = np.array(math.prod(shape) if indices.ndim == 1 else shape)
    if bool(np.any(indices < 0)) or bool(np.any(indices >= limit)):
        raise refusal(f"has indices outside its shape {list(shape)}")
    dense = np.zeros(shape, values.dtype)
    dense[np.unravel_index(indices, shape) if indices.ndim == 1 else tuple(indices.T)] = values
    return onnx.numpy_helper.from_array(dense, sparse.values.name)
