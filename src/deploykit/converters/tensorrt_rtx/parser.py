"""TensorRT-RTX's own objects, with everything they say kept: the log, and the ONNX parser's errors by node."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import tensorrt_rtx as trt

from deploykit.converters.tensorrt import engine
from deploykit.converters.tensorrt.engine import ParseProblem, parse_problems
from deploykit.converters.tensorrt.findings import of_log
from deploykit.converters.tensorrt.options import lacking

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from deploykit.report import Finding

NAME = "tensorrt-rtx"


class VendorLog(trt.ILogger):  # type: ignore[misc]
    """Keeps every message of the builder, the parser and the compiler, verbose ones left out."""

    def __init__(self) -> None:
        """An empty log."""
        super().__init__()
        self.kept = engine.Messages()

    def log(self, severity: Any, message: str) -> None:
        """Called from C++, also from other threads."""
        self.kept.keep(severity, message)

    def findings(self, start: int = 0) -> list[Finding]:
        """What messages after `start` amount to: an error each for dropped settings and errors, a note for warnings."""
        return of_log(self.kept, NAME, "TensorRT-RTX", start)


def source_label() -> str:
    """Who speaks when the parser judges a node: "TensorRT-RTX 1.7 parser", not "TensorRT"."""
    return f"TensorRT-RTX {'.'.join(trt.__version__.split('.')[:2])} parser"


@contextlib.contextmanager
def parsed(path: Path) -> Iterator[Any]:
    """The network made of a model that the parser takes; nothing is built. Gives None when it does not take it."""
    log = VendorLog()
    builder = trt.Builder(log)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, log)
    # The network refers to weights that the parser owns, and to the builder: they live as long as it is looked at.
    yield network if parser.parse_from_file(str(path)) else None
    del network, parser, builder


def check_model(path: Path) -> tuple[list[ParseProblem], list[tuple[bool, list[int]]]]:
    """The parser's judgement of a whole model, nothing built: problems, and (supported, node indices) by subgraph."""
    log = VendorLog()
    builder = trt.Builder(log)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, log)
    parser.supports_model_v2(path.read_bytes(), str(path))
    problems = parse_problems(parser)
    subgraphs = [
        (bool(parser.is_subgraph_supported(index)), [int(node) for node in parser.get_subgraph_nodes(index)])
        for index in range(parser.num_subgraphs)
    ]
    return problems, subgraphs


def load_plugins(library: str | None) -> None:
    """Registers the plugins of a library for the rest of the process. Raises UsageError (DK231)."""
    if library is None or library in _loaded:
        return
    try:
        _loaded[library] = engine.load_libraries(trt, VendorLog(), [library])
    except engine.OptionError as problem:
        error = lacking(problem, NAME)
        error.file = library
        error.hint = "--custom-ops takes a plugin library built for this TensorRT-RTX, which exports getCreators"
        raise error from problem


# Kept: a plugin registry unloads a library with its last handle.
_loaded: dict[str, Any] = {}
