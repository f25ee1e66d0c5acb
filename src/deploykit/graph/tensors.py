"""Tensors as a model file declares them, held against the bytes that are there, before any memory is taken."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

from deploykit import io
from deploykit.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Larger than any memory: a product of dimensions beyond it is an attack or an accident.
_MOST_ELEMENTS = 2**48
# An input or output beyond it is refused before an engine tries: 1 TiB.
_MOST_BYTES = 2**40
_FOUR_BIT = {onnx.TensorProto.INT4, onnx.TensorProto.UINT4, getattr(onnx.TensorProto, "FLOAT4E2M1", -1)}
_TWO_BIT = {getattr(onnx.TensorProto, "INT2", -1), getattr(onnx.TensorProto, "UINT2", -1)}
_COMPLEX = {onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128}
_KNOWN = {int(t) for t in ir.DataType} - {0}
_BIT_SIZED = _KNOWN - {int(onnx.TensorProto.STRING)}


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """A tensor and where it stands: "initializer 'w'", "attribute 'value' of Constant node 'c'"."""

    tensor: onnx.TensorProto
    what: str
    node: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ExternalRange:
    """Bytes of an external data file: its path as the model names it (confined to the folder), offset, length."""

    path: Path
    location: str
    offset: int
    length: int


def tensors_of(model: onnx.ModelProto) -> Iterator[Place]:
    """Every tensor of a model: initializers, sparse ones, attributes, in all graphs, functions and training graphs."""
    yield from _of_graph(model.graph)
    for function in model.functions:
        for node in function.node:
            yield from _of_node(node)
        for attribute in function.attribute_proto:
            yield from _of_attribute(attribute, f"function {function.name!r}", None)
    for training in model.training_info:
        yield from _of_graph(training.initialization)
        yield from _of_graph(training.algorithm)


def _of_graph(graph: onnx.GraphProto) -> Iterator[Place]:
    for tensor in graph.initializer:
        yield Place(tensor, f"initializer {tensor.name!r}")
    for sparse in graph.sparse_initializer:
        yield from _of_sparse(sparse, f"sparse initializer {sparse.values.name!r}", None)
    for node in graph.node:
        yield from _of_node(node)


def _of_node(node: onnx.NodeProto) -> Iterator[Place]:
    owner = f"{node.op_type} node {node.name or (node.output[0] if node.output else '')!r}"
    for attribute in node.attribute:
        yield from _of_attribute(attribute, owner, node.name or None)


def _of_attribute(attribute: onnx.AttributeProto, owner: str, node: str | None) -> Iterator[Place]:
    what = f"attribute {attribute.name!r} of {owner}"
    if attribute.HasField("t"):
        yield Place(attribute.t, what, node)
    if attribute.HasField("sparse_tensor"):
        yield from _of_sparse(attribute.sparse_tensor, what, node)
    if attribute.HasField("g"):
        yield from _of_graph(attribute.g)
    for tensor in attribute.tensors:
        yield Place(tensor, what, node)
    for sparse in attribute.sparse_tensors:
        yield from _of_sparse(sparse, what, node)
    for graph in attribute.graphs:
        yield from _of_graph(graph)


def _of_sparse(sparse: onnx.SparseTensorProto, what: str, node: str | None) -> Iterator[Place]:
    yield Place(sparse.values, f"values of {what}", node)
    yield Place(sparse.indices, f"indices of {what}", node)


def check_tensors(model: onnx.ModelProto, path: Path) -> tuple[str, ...]:
    """Checks every tensor of the model at `path`; returns the locations of its external data files, sorted.

    Raises ModelError: DK113 location outside the folder, DK114 data file missing, DK115 declared bytes beyond the
    file or against the shape, DK116 inline data against the shape, or an input or output that no memory holds.
    """
    _check_interface(model, path)
    locations = set()
    sizes: dict[str, int] = {}
    for place in tensors_of(model):
        nbytes = _declared_bytes(place, path)
        if place.tensor.data_location == onnx.TensorProto.EXTERNAL:
            locations.add(_check_external(place, path, nbytes, sizes))
        else:
            _check_inline(place, path, nbytes)
    return tuple(sorted(locations))


def _check_interface(model: onnx.ModelProto, path: Path) -> None:
    """Refuses inputs and outputs whose fixed dimensions alone ask for more than any memory; open ones count as 1."""
    for kind, values in (("input", model.graph.input), ("output", model.graph.output)):
        for value in values:
            declared = value.type.tensor_type
            shape = [dim.dim_value for dim in declared.shape.dim if dim.dim_value > 0]
            bits = ir.DataType(declared.elem_type).bitwidth if declared.elem_type in _BIT_SIZED else 8
            nbytes = -(-math.prod(shape) * bits // 8)
            if nbytes > _MOST_BYTES:
                raise ModelError(
                    f"{path.name}: {kind} {value.name!r} would take {nbytes / 2**40:,.1f} TiB of memory: "
                    f"its fixed dimensions are {shape}",
                    code="DK116",
                    file=path,
                    tensor=value.name,
                    hint="export the model again with the sizes that you use",
                )


def _elements(place: Place, path: Path) -> int:
    count = 1
    for dim in place.tensor.dims:
        if dim < 0:
            raise _broken(place, path, f"has the negative dimension {dim}")
        count *= dim
    if count > _MOST_ELEMENTS:
        raise _broken(place, path, f"declares the shape {list(place.tensor.dims)}, which no memory holds")
    return count


def _declared_bytes(place: Place, path: Path) -> int | None:
    """Bytes that dtype and shape ask for; None for strings."""
    dtype = place.tensor.data_type
    if dtype not in _KNOWN:
        raise _broken(place, path, f"has the unknown data type {dtype}")
    count = _elements(place, path)
    if dtype == onnx.TensorProto.STRING:
        return None
    return -(-count * ir.DataType(dtype).bitwidth // 8)


def _broken(place: Place, path: Path, why: str, *, code: str = "DK116", hint: str = "") -> ModelError:
    return ModelError(
        f"{path.name}: {place.what} {why}",
        code=code,
        file=path,
        tensor=place.tensor.name or None,
        node=place.node,
        hint=hint or "the file is damaged or was made by a faulty tool: export it again",
    )


def external_range(place: Place, path: Path, nbytes: int | None = None) -> ExternalRange:
    """Where the external bytes of a tensor lie; ModelError (DK113, DK115) when the declaration is not sound."""
    entries = {entry.key: entry.value for entry in place.tensor.external_data}
    location = entries.get("location", "")
    try:
        file = io.inside(path.parent, location, f"{path.name}: external data of {place.what}")
    except ModelError as problem:
        problem.file, problem.tensor, problem.node = str(path), place.tensor.name or None, place.node
        raise
    numbers = {}
    for key in ("offset", "length"):
        text = entries.get(key, "")
        # int() also takes '1_0', ' 7' and '-1'.
        if text and not (text.isascii() and text.isdigit() and len(text) <= 20):
            raise _broken(place, path, f"has the external data {key} {text!r}, which is not a byte count", code="DK115")
        numbers[key] = int(text) if text else None
    length = numbers["length"]
    return ExternalRange(file, location, numbers["offset"] or 0, (nbytes or 0) if length is None else length)


def _check_external(place: Place, path: Path, nbytes: int | None, sizes: dict[str, int]) -> str:
    if nbytes is None:
        raise _broken(place, path, "holds strings, which cannot be external data", code="DK115")
    where = external_range(place, path, nbytes)
    if where.location not in sizes:
        if not where.path.is_file():
            raise ModelError(
                f"{path.name}: {place.what} needs the data file {where.location!r}, which is not there",
                code="DK114",
                file=path,
                tensor=place.tensor.name or None,
                node=place.node,
                hint=f"put {where.location!r} beside {path.name}: models with external data are moved together with it",
            )
        sizes[where.location] = where.path.stat().st_size
    size = sizes[where.location]
    if where.length != nbytes:
        shape = list(place.tensor.dims)
        raise _broken(
            place, path, f"declares {where.length} external bytes, and its shape {shape} needs {nbytes}", code="DK115"
        )
    if where.offset + nbytes > size:
        raise _broken(
            place,
            path,
            f"needs bytes {where.offset} to {where.offset + nbytes} of {where.location!r}, which has {size}",
            code="DK115",
            hint=f"{where.location!r} is cut off or belongs to another model: get both files again",
        )
    return where.location


def _check_inline(place: Place, path: Path, nbytes: int | None) -> None:
    tensor = place.tensor
    count = _elements(place, path)
    shape = list(tensor.dims)
    if nbytes is None:
        if len(tensor.string_data) != count:
            raise _broken(place, path, f"has {len(tensor.string_data)} strings, and its shape {shape} needs {count}")
        return
    if tensor.HasField("raw_data"):
        have = len(tensor.raw_data)
        if have != nbytes:
            raise _broken(place, path, f"has {have} bytes of data, and its shape {shape} needs {nbytes}")
        return
    have = max(len(getattr(tensor, f"{kind}_data")) for kind in ("float", "int32", "int64", "double", "uint64"))
    dtype = tensor.data_type
    needs = 2 * count if dtype in _COMPLEX else -(-count // 2) if dtype in _FOUR_BIT else count
    needs = -(-count // 4) if dtype in _TWO_BIT else needs
    if have != needs:
        raise _broken(place, path, f"has {have} values, and its shape {shape} needs {needs}")
