"""Writes a model whose weights lie inside the file without a copy of all of them in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Below this a model is one message, built in memory.
WORTH_STREAMING = 64 << 20
_LARGE = 1 << 20
# Field numbers of the ONNX format, each as the byte that starts a field with a length.
_GRAPH_OF_MODEL = bytes([7 << 3 | 2])
_INITIALIZER_OF_GRAPH = bytes([5 << 3 | 2])
_RAW_DATA_OF_TENSOR = bytes([9 << 3 | 2])


def write_streaming(model: ir.Model, path: Path) -> None:
    """Writes the model as one file, initializers of a MiB and more after everything else, one at a time.

    Protobuf does not order fields: readers see the same message. Raises OSError when the disk is full. The model is not
    changed.
    """
    scope = model.graph
    order = list(scope.initializers.values())
    large = [value for value in order if _is_large(value)]
    for value in large:
        del scope.initializers[value.name or ""]
    try:
        rest: onnx.ModelProto = ir.to_proto(model)
    finally:
        # The order of the dictionary is that of the file.
        scope.initializers.clear()
        for value in order:
            scope.initializers.add(value)
    body = rest.graph.SerializeToString(deterministic=True)
    rest.ClearField("graph")
    heads = [_head(value) for value in large]
    parts = [len(head) + tensor.nbytes for head, tensor in heads]
    length = len(body) + sum(1 + len(_varint(part)) + part for part in parts)
    with path.open("wb") as stream:
        stream.write(rest.SerializeToString(deterministic=True))
        stream.write(_GRAPH_OF_MODEL + _varint(length) + body)
        for (head, tensor), part in zip(heads, parts, strict=True):
            stream.write(_INITIALIZER_OF_GRAPH + _varint(part) + head)
            stream.writelines(_content(tensor))


def _is_large(value: ir.Value) -> bool:
    tensor = value.const_value
    return tensor is not None and tensor.dtype != ir.DataType.STRING and tensor.nbytes >= _LARGE


def _head(value: ir.Value) -> tuple[bytes, ir.TensorProtocol]:
    """The tensor's message up to its data, and the tensor."""
    tensor = value.const_value
    if tensor is None:
        raise ValueError(f"{value.name} has no data")
    proto = onnx.TensorProto(data_type=int(tensor.dtype), dims=tensor.shape.numpy(), name=value.name or "")
    if tensor.doc_string:
        proto.doc_string = tensor.doc_string
    for key, text in tensor.metadata_props.items():
        proto.metadata_props.add(key=key, value=text)
    head = proto.SerializeToString(deterministic=True)
    return head + _RAW_DATA_OF_TENSOR + _varint(tensor.nbytes), tensor


def _content(tensor: ir.TensorProtocol) -> Iterator[bytes]:
    yield tensor.tobytes()


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the eighth says that more follow."""
    out = bytearray()
    while True:
        out.append(value & 0x7F | (0x80 if value > 0x7F else 0))
        value >>= 7
        if not value:
            return bytes(out)
