"""Writing ONNX files: same model, same bytes; large weights in one file beside it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import onnx_ir as ir
from google.protobuf.message import EncodeError

from deploykit.errors import ModelError
from deploykit.graph.naming import all_nodes
from deploykit.graph.streaming import WORTH_STREAMING, write_streaming

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# One protobuf message ends at 2 GiB; names and structure need their share.
INLINE_LIMIT = 1_900_000_000
# A model that came with this much external data keeps it external: inlining would double the memory it needs.
KEEP_EXTERNAL = 1_000_000_000
_SMALLEST_EXTERNAL = 1024
_SMALLEST_EXTERNAL_ATTRIBUTE = 1 << 20
_PAGE = 4096  # the specification asks for page-aligned offsets, so that runtimes can map the file
DATA_SUFFIX = ".data"


def save(model: ir.Model, path: Path) -> tuple[str, ...]:
    """Writes the model at `path`, replacing what is there; returns the names of the files, the model first.

    Weights lie in the file; above 1.9 GB (or where the model came with more than 1 GB outside) they lie in
    `<name>.onnx.data` beside it, which is written anew each time. The model itself is not changed.
    Raises OSError when the disk is full; nothing half-written is left then.
    """
    data = path.with_name(path.name + DATA_SUFFIX)
    external = _must_be_external(model)
    partial, partial_data = _partial(path, ""), _partial(path, DATA_SUFFIX)
    try:
        with _tensors_for_file(model, partial_data if external else None, data) as swapped:
            if not external and _weight_bytes(model) > WORTH_STREAMING:
                write_streaming(model, partial)
            else:
                partial.write_bytes(ir.to_proto(model).SerializeToString(deterministic=True))
            if external:
                partial_data.replace(data)
                swapped.keep_where(data)
            partial.replace(path)
    except EncodeError as problem:
        raise ModelError(
            f"{path.name} does not fit in one ONNX file: protobuf's limit is 2 GB", code="DK119", file=path
        ) from problem
    finally:
        for file in (partial, partial_data):
            file.unlink(missing_ok=True)
    return (path.name, data.name) if external else (path.name,)


def _partial(path: Path, suffix: str) -> Path:
    # Names may have 255 bytes: the temporary one must not be longer than the final one.
    stem = path.name.encode()[:100].decode(errors="ignore")
    return path.with_name(f".{stem}{suffix}.part")


def _weight_bytes(model: ir.Model) -> int:
    tensors = [value.const_value for value in model.graph.initializers.values()]
    return sum(tensor.nbytes for tensor in tensors if tensor is not None and tensor.dtype != ir.DataType.STRING)


def _must_be_external(model: ir.Model) -> bool:
    total = outside = 0
    for slot in _slots(model):
        total += slot.tensor.nbytes if slot.tensor.dtype != ir.DataType.STRING else 0
        outside += slot.tensor.nbytes if isinstance(slot.tensor, ir.ExternalTensor) else 0
    return total > INLINE_LIMIT or outside > KEEP_EXTERNAL


class _Slot:
    """A place that holds a tensor: an initializer, or an attribute of a node."""

    def __init__(self, owner: ir.Value | ir.Node, tensor: ir.TensorProtocol, attribute: str = "") -> None:
        self.owner = owner
        self.tensor = tensor
        self.attribute = attribute

    def put(self, tensor: ir.TensorProtocol) -> None:
        if isinstance(self.owner, ir.Value):
            self.owner.const_value = tensor
        else:
            self.owner.attributes[self.attribute] = ir.AttrTensor(self.attribute, tensor)


def _slots(model: ir.Model) -> Iterator[_Slot]:
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is None:
                raise ModelError(f"initializer {value.name!r} has no data", code="DK116", tensor=value.name)
            yield _Slot(value, value.const_value)
    for node in all_nodes(model):
        for name, attribute in node.attributes.items():
            if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                yield _Slot(node, attribute.as_tensor(), name)


class _Swapped:
    """Tensors that were exchanged for the time of writing."""

    def __init__(self) -> None:
        self.pairs: list[tuple[_Slot, ir.TensorProtocol]] = []

    def swap(self, slot: _Slot, tensor: ir.TensorProtocol) -> None:
        slot.put(tensor)
        self.pairs.append((slot, tensor))

    def keep_where(self, data: Path) -> None:
        """A tensor that was mapped from the file just replaced now lies elsewhere in it: keep the new one."""
        same = data.resolve()
        for slot, tensor in self.pairs:
            old = slot.tensor
            if isinstance(old, ir.ExternalTensor) and old.path == str(same) and isinstance(tensor, ir.ExternalTensor):
                slot.tensor = _external(tensor, str(same), tensor.offset or 0)

    def restore(self) -> None:
        for slot, _ in self.pairs:
            slot.put(slot.tensor)


@contextlib.contextmanager
def _tensors_for_file(model: ir.Model, partial: Path | None, data: Path) -> Iterator[_Swapped]:
    """The model with its tensors as the file is to hold them: all inline, or the large ones in `partial`."""
    swapped = _Swapped()
    try:
        if partial is None:
            for slot in list(_slots(model)):
                if isinstance(slot.tensor, ir.ExternalTensor):
                    swapped.swap(slot, _in_memory(slot.tensor))
        else:
            _write_data(model, partial, data.name, swapped)
        yield swapped
    finally:
        swapped.restore()


def _write_data(model: ir.Model, partial: Path, location: str, swapped: _Swapped) -> None:
    offset = 0
    with partial.open("wb") as stream:
        for slot in list(_slots(model)):
            tensor = slot.tensor
            smallest = _SMALLEST_EXTERNAL_ATTRIBUTE if slot.attribute else _SMALLEST_EXTERNAL
            if tensor.dtype == ir.DataType.STRING or tensor.nbytes < smallest:
                if isinstance(tensor, ir.ExternalTensor):
                    swapped.swap(slot, _in_memory(tensor))
                continue
            stream.write(bytes(-offset % _PAGE))
            offset += -offset % _PAGE
            if isinstance(tensor, (ir.ExternalTensor, ir.Tensor)):
                tensor.tofile(stream)
            else:
                stream.write(tensor.tobytes())
            swapped.swap(slot, _external(tensor, location, offset))
            offset += tensor.nbytes


def _external(tensor: ir.TensorProtocol, location: str, offset: int) -> ir.ExternalTensor:
    return ir.ExternalTensor(
        location,
        offset=offset,
        length=tensor.nbytes,
        dtype=tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=tensor.name or "",
        doc_string=tensor.doc_string,
        metadata_props=dict(tensor.metadata_props),
    )


def _in_memory(tensor: ir.ExternalTensor) -> ir.TensorProtocol:
    return ir.Tensor(
        tensor.numpy(),
        dtype=tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=tensor.name,
        doc_string=tensor.doc_string,
        metadata_props=dict(tensor.metadata_props),
    )
