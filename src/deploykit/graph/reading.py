"""Reading ONNX files, which are hostile input until every check has passed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from deploykit.errors import ModelError
from deploykit.graph.files import check_kind
from deploykit.graph.sparse import make_dense
from deploykit.graph.tensors import check_tensors
from deploykit.graph.wire import graph_entries
from deploykit.graph.wiring import check_wiring

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Two bytes of file may become a node of hundreds of bytes in memory.
MOST_ENTRIES = 2_000_000
# Where `load` notes the external data files of a model: names relative to its folder.
EXTERNAL_FILES = "deploykit.external_files"


def check_file(path: Path) -> None:
    """Refuses what `load` would refuse, without building the graph; external data stays unread.

    Raises InvalidFileError and ModelError as `load` does.
    """
    _checked(path)


def load(path: Path) -> ir.Model:
    """The model at `path`, nodes in topological order; external tensors are mapped from disk when they are read.

    Sparse initializers become dense ones, training graphs are left out: the graph library has neither.

    Raises InvalidFileError (DK101 to DK104: missing, folder, unreadable, empty) and ModelError (DK110 another kind of
    file, DK111 damaged, DK112 not a model, DK113 to DK116 tensors, DK117 wiring, DK118 opset imports, DK119 too large).
    """
    proto, ordered, locations = _checked(path)
    make_dense(proto, path)
    try:
        model: ir.Model = ir.from_proto(proto)
    except Exception as problem:  # the library has no common error class, and the file is the cause of any of them
        raise ModelError(
            f"{path.name} cannot be read as a graph: {_first_line(_root(problem))}",
            code="DK112",
            file=path,
            hint="the file was made by a faulty tool: export it again",
        ) from problem
    _bind_external(model, path.parent)
    model.meta[EXTERNAL_FILES] = locations
    if not ordered:
        for graph in model.graphs():
            graph.sort()
        for function in model.functions.values():
            function.sort()
    return model


def read_proto(path: Path) -> onnx.ModelProto:
    """The checked model at `path` as protobuf, external data not loaded; raises as `load` does."""
    return _checked(path)[0]


def _checked(path: Path) -> tuple[onnx.ModelProto, bool, tuple[str, ...]]:
    """The model, whether its nodes stand in order, and its external data files."""
    proto = _parse(path)
    locations = check_tensors(proto, path)
    return proto, check_wiring(proto, path), locations


def _parse(path: Path) -> onnx.ModelProto:
    check_kind(path)
    proto = onnx.ModelProto()
    try:
        # Bytes: of a map the protobuf library makes a copy first, and both count beside the messages.
        content = path.read_bytes()
        if graph_entries(memoryview(content), MOST_ENTRIES) > MOST_ENTRIES:
            raise _too_many(path)
        proto.ParseFromString(content)
        del content
    except DecodeError as problem:
        raise ModelError(
            f"{path} is not a whole ONNX file: it is cut off, damaged or of another format",
            code="DK111",
            file=path,
            context=[f"{path.stat().st_size} bytes; protobuf: {_first_line(problem)}"],
            hint="download or export it again, and compare sizes",
        ) from problem
    if not proto.HasField("graph") or proto.ir_version <= 0:
        missing = "graph" if not proto.HasField("graph") else "IR version"
        raise ModelError(
            f"{path} is not an ONNX model: it has no {missing}",
            code="DK112",
            file=path,
            hint="give the .onnx file that the exporter wrote (a single tensor or a fragment is not a model)",
        )
    if not proto.graph.output:
        raise ModelError(
            f"{path} has no output, so there is nothing to compute",
            code="DK112",
            file=path,
            hint="export it again with outputs",
        )
    return proto


def _too_many(path: Path) -> ModelError:
    return ModelError(
        f"{path} has more than {MOST_ENTRIES} nodes and values, and would fill the memory",
        code="DK119",
        file=path,
        hint="no exporter writes such graphs: get the file again, or export it with loops kept as loops",
    )


def _root(problem: BaseException) -> BaseException:
    """What the graph library's layers say around, each of them only where it was."""
    while problem.__cause__ is not None:
        problem = problem.__cause__
    return problem


def _first_line(problem: BaseException) -> str:
    return (str(problem).strip() or type(problem).__name__).splitlines()[0][:300]


def _bind_external(model: ir.Model, folder: Path) -> None:
    """Points external tensors at their resolved files.

    The library would refuse links into a Hugging Face cache and files with a second hard link (deduplicated package
    caches); `check_tensors` has confined every path already, and without a base folder its check is off.
    """
    for value in _initializers(model):
        if isinstance(value.const_value, ir.ExternalTensor):
            value.const_value = _resolved(value.const_value, folder)
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        _bind_attributes(node, folder)
    for function in model.functions.values():
        for node in ir.traversal.RecursiveGraphIterator(function.graph):
            _bind_attributes(node, folder)


def _initializers(model: ir.Model) -> Iterator[ir.Value]:
    for graph in model.graphs():
        yield from graph.initializers.values()


def _bind_attributes(node: ir.Node, folder: Path) -> None:
    for name, attribute in list(node.attributes.items()):
        if attribute.type == ir.AttributeType.TENSOR and isinstance(attribute.value, ir.ExternalTensor):
            node.attributes[name] = ir.AttrTensor(name, _resolved(attribute.value, folder))
        elif attribute.type == ir.AttributeType.TENSORS and attribute.value:
            tensors = [_resolved(t, folder) if isinstance(t, ir.ExternalTensor) else t for t in attribute.value]
            node.attributes[name] = ir.AttrTensors(name, tensors)


def _resolved(tensor: ir.ExternalTensor, folder: Path) -> ir.ExternalTensor:
    return ir.ExternalTensor(
        str((folder / tensor.location).resolve()),
        offset=tensor.offset,
        length=tensor.length,
        dtype=tensor.dtype,
        shape=tensor.shape,
        name=tensor.name,
        doc_string=tensor.doc_string,
        metadata_props=dict(tensor.metadata_props),
    )
