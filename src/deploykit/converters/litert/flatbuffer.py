"""The file of a LiteRT model: read after LiteRT's own verifier has passed it, looked through, and written."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any

from deploykit import io
from deploykit.errors import InvalidFileError, ModelError
from deploykit.lazy import version_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

NAME = "litert"
# The constructor's words for what its verifier refuses.
_NO_MODEL = ("not a valid flatbuffer", "model provided has model identifier", "could not open")
_DTYPES = {"float32", "float16", "float64", "bfloat16", "string", "bool", "complex64", "complex128"}


def versioned() -> str:
    """LiteRT's version: `2.3.0`."""
    return version_of("ai-edge-litert") or "unknown"


def read(path: Path) -> bytes:
    """The whole file. Raises InvalidFileError where it is missing or empty, (DK528) for a folder."""
    if path.is_dir():
        raise InvalidFileError(f"{path} is a folder, and no LiteRT model", code="DK528", file=path)
    io.existing_file(path, "LiteRT model")
    return path.read_bytes()


def interpreter(content: bytes, name: str, *, threads: int = 1, delegates: bool = True) -> Any:
    """LiteRT's interpreter of a file's content, nothing allocated yet.

    name: of the file, for messages. delegates: whether XNNPACK may take operators.
    By content, since only that is verified before it is used: a cut-off file crashes the other way.
    Raises InvalidFileError (DK528) for what is no whole model, ModelError (DK202) for one that LiteRT does not take.
    """
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    kind = OpResolverType.AUTO if delegates else OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Interpreter(model_content=content, num_threads=threads, experimental_op_resolver_type=kind)
    except Exception as problem:  # ValueError, RuntimeError by version
        said = " ".join(str(problem).split())
        if any(words in said.casefold() for words in _NO_MODEL):
            raise InvalidFileError(
                f"{name} is no whole LiteRT model: {said}",
                code="DK528",
                file=name,
                hint="copy it again, or convert it again",
            ) from problem
        raise ModelError(
            f"LiteRT {versioned()} does not take {name}: {said[:600]}", code="DK202", file=name
        ) from problem


def parse(content: bytes, name: str) -> Any:
    """The model's tables as objects (`schema_py_generated.ModelT`), of content that an interpreter has verified.

    Raises InvalidFileError (DK528) where its tables point outside of one another.
    """
    from ai_edge_litert.tools import flatbuffer_utils

    model = flatbuffer_utils.read_model_from_bytearray(content)
    wrong = _contradiction(model)
    if wrong:
        raise InvalidFileError(
            f"{name} is no whole LiteRT model: {wrong}", code="DK528", file=name, hint="convert it again"
        )
    return model


def _contradiction(model: Any) -> str:
    """What of the model's indices points nowhere; "" when all of them are right."""
    graphs = model.subgraphs or []
    if not graphs:
        return "it has no graph"
    for place, graph in enumerate(graphs):
        tensors = len(graph.tensors or [])
        if any(not 0 <= tensor.buffer < len(model.buffers or []) for tensor in graph.tensors or []):
            return f"a tensor of graph {place} has no buffer"
        if not _all_below([*_ints(graph.inputs), *_ints(graph.outputs)], tensors):
            return f"an input or output of graph {place} is no tensor of it"
        for operator in graph.operators or []:
            if not 0 <= operator.opcodeIndex < len(model.operatorCodes or []):
                return f"an operator of graph {place} has no code"
            if not _all_below([i for i in (*_ints(operator.inputs), *_ints(operator.outputs)) if i != -1], tensors):
                return f"an operator of graph {place} names a tensor that is not there"
    for signature in model.signatureDefs or []:
        if not 0 <= signature.subgraphIndex < len(graphs):
            return "a signature names a graph that is not there"
        tensors = len(graphs[signature.subgraphIndex].tensors or [])
        pairs = [*(signature.inputs or []), *(signature.outputs or [])]
        if not _all_below([pair.tensorIndex for pair in pairs], tensors):
            return "a signature names a tensor that is not there"
    if any(not 0 <= entry.buffer < len(model.buffers or []) for entry in model.metadata or []):
        return "a metadata entry has no buffer"
    return ""


def _ints(values: Any) -> list[int]:
    return [] if values is None else [int(value) for value in values]


def _all_below(indices: Iterable[int], count: int) -> bool:
    return all(0 <= index < count for index in indices)


def serialize(model: Any) -> bytes:
    """The file of a model whose tables were changed."""
    from ai_edge_litert.tools import flatbuffer_utils

    return bytes(flatbuffer_utils.convert_object_to_bytearray(model))


def text(value: Any) -> str:
    """A string of the schema, which is bytes or text by how the table was made."""
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value or "")


def operator_name(model: Any, operator: Any) -> str:
    """`CONV_2D`, or a custom operator's own name."""
    return code_name(model.operatorCodes[operator.opcodeIndex])


def code_name(code: Any) -> str:
    """The name of an operator code."""
    names = _builtin_names()
    number = int(max(code.builtinCode, code.deprecatedBuiltinCode))
    if names.get(number) == "CUSTOM":
        return text(code.customCode) or "CUSTOM"
    return names.get(number, f"BUILTIN_{number}")


def _builtin_names() -> dict[int, str]:
    from ai_edge_litert.schema_py_generated import BuiltinOperator

    return {value: name for name, value in vars(BuiltinOperator).items() if isinstance(value, int)}


def dtype_name(kind: int) -> str:
    """Numpy's name of a tensor type; the schema's own, in small letters, where numpy has none."""
    from ai_edge_litert.schema_py_generated import TensorType

    names = {value: name for name, value in vars(TensorType).items() if isinstance(value, int)}
    found: str = names.get(kind, f"type_{kind}")
    return found.lower()


def metadata_of(model: Any, name: str) -> bytes | None:
    """The metadata entry of that name."""
    for entry in model.metadata or []:
        if text(entry.name) == name:
            data = model.buffers[entry.buffer].data
            return None if data is None else bytes(data)
    return None


def set_metadata(model: Any, name: str, data: bytes) -> None:
    """Writes a metadata entry, in place of one of that name."""
    import numpy as np
    from ai_edge_litert.schema_py_generated import BufferT, MetadataT

    buffer = BufferT()
    buffer.data = np.frombuffer(data, dtype=np.uint8)
    for entry in model.metadata or []:
        if text(entry.name) == name:
            model.buffers[entry.buffer] = buffer
            return
    entry = MetadataT()
    entry.name, entry.buffer = name, len(model.buffers)
    model.buffers.append(buffer)
    model.metadata = [*(model.metadata or []), entry]


def cpu_threads() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
