"""TensorRT-RTX's own objects, with everything they say kept: the log, and the ONNX parser's errors by node."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from typing import TYPE_CHECKING, Any

import tensorrt_rtx as trt

from deploykit.errors import UsageError
from deploykit.report import Finding, failure, note

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME = "tensorrt-rtx"
# A setting that is dropped is logged and the engine is built without it: nothing that was asked for may get lost so.
_DROPPED = re.compile(
    r"\bignor(ed|ing|es)\b|\breject(ed|ing|s)?\b|\bunsupported\b|\bnot supported\b|\bdoes not support\b|\bno effect\b",
    re.IGNORECASE,
)
_SOURCE_PLACE = re.compile(r"\.?\s+In \w+ at \S+:\d+")
_NODE_IN_TEXT = re.compile(r"operation '([^']+)'|\bI\w+Layer ([^\s:]+):")


class VendorLog(trt.ILogger):  # type: ignore[misc]
    """Keeps every message of the builder, the parser and the compiler, verbose ones left out."""

    def __init__(self) -> None:
        """An empty log."""
        super().__init__()
        self.messages: list[tuple[str, str]] = []

    def log(self, severity: Any, message: str) -> None:
        """Called from C++, also from other threads."""
        if severity != trt.ILogger.Severity.VERBOSE:
            self.messages.append((severity.name, message.strip()))

    def findings(self, start: int = 0) -> list[Finding]:
        """What messages after `start` amount to: an error each for dropped settings and errors, a note for warnings."""
        found: dict[str, Finding] = {}
        for severity, message in self.messages[start:]:
            if severity in {"ERROR", "INTERNAL_ERROR"} or _DROPPED.search(message):
                found[message] = failure(
                    "DK523",
                    f"TensorRT-RTX dropped or refused something: {message}",
                    target=NAME,
                    hint="remove the option or node that it names; the engine would not be what was asked for",
                )
            elif severity == "WARNING":
                found[message] = note("DK524", f"TensorRT-RTX warns: {message}", target=NAME)
        return list(found.values())

    def lines(self, start: int = 0) -> list[str]:
        """Messages after `start` as lines, for an error's log."""
        return [f"[{severity}] {message}" for severity, message in self.messages[start:] if message.strip("-")]

    def errors(self, start: int = 0) -> list[str]:
        """Texts of the errors after `start`."""
        return [text for severity, text in self.messages[start:] if severity in {"ERROR", "INTERNAL_ERROR"}]


@dataclasses.dataclass(frozen=True, slots=True)
class ParseProblem:
    """One node that the parser refuses. index: its place among the graph's nodes, -1 inside a function body."""

    index: int
    node: str
    op: str
    reason: str


def parse_problems(parser: Any) -> list[ParseProblem]:
    """Every error of the parser's last look at a model."""
    problems = []
    for number in range(parser.num_errors):
        error = parser.get_error(number)
        inside = error.local_function_stack_size() > 0
        problems.append(
            ParseProblem(
                index=-1 if inside else error.node(),
                node=error.node_name(),
                op=error.node_operator(),
                reason=_reason(error.node_operator(), str(error.desc()), str(error.func())),
            )
        )
    return problems


def _reason(op: str, text: str, function: str) -> str:
    """The parser's text as a sentence: what it gives is often a bare C++ condition, at worst `false`."""
    text = _sentence(text)
    quoted = re.search(r'&&\s*\\?"(.+?)\\?"\s*$', text)
    if "Plugin not found" in text:
        return f"its ONNX parser has no {op} and no plugin of that name is registered"
    if quoted:
        return quoted[1]
    if text.strip() in {"false", ""}:
        return f"its ONNX parser does not import {op} ({function})"
    return f"its ONNX parser requires: {text}"


def _sentence(text: str) -> str:
    """What the text says of the model: without places in TensorRT's sources, and without the missing driver.

    Whatever the parser asks of CUDA fails on a machine without a GPU, and is no fault of the node.
    """
    lines = [line.strip() for line in text.splitlines()]
    told = " ".join(line for line in lines if line and "cudaError" not in line and not line.startswith("[checkMacros"))
    return _SOURCE_PLACE.sub("", told).strip()


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
    log = VendorLog()
    builder = trt.Builder(log)  # its log is the one that the registry writes to
    # The registry of the process: what a builder's own one knows, no other builder's parser finds.
    registry = trt.get_plugin_registry()
    known = {creator.name for creator in registry.all_creators}
    handle = registry.load_library(library)
    del builder
    added = {creator.name for creator in registry.all_creators} - known
    if handle is None or not added:
        told = next(iter(log.errors()), "it registers no plugin")
        raise UsageError(
            f"TensorRT-RTX does not load {library}: {told}",
            code="DK231",
            file=library,
            target=NAME,
            hint="--custom-ops takes a plugin library built for this TensorRT-RTX, which exports getCreators",
        )
    _loaded[library] = handle


# Kept: a plugin registry unloads a library with its last handle.
_loaded: dict[str, Any] = {}


def node_in(text: str) -> str | None:
    """The layer or node that a builder error names, when it names one."""
    found = _NODE_IN_TEXT.search(text)
    return next((group for group in found.groups() if group), None) if found else None
