"""What OpenVINO takes, node by node: its own ONNX front-end and CPU plugin are asked (runs in the worker)."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
from openvino.frontend import FrontEndManager

from deploykit import graph
from deploykit.converters.openvino.extension import core_with, extend
from deploykit.converters.openvino.interface import dtype_name, versioned
from deploykit.opsupport.limits import load_limits
from deploykit.opsupport.verdict import Verdict, supported, unknown, unsupported
from deploykit.report import failure

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import openvino as ov

    from deploykit.artifact import TensorSpec

_LOG_ENTRY = re.compile(r"^-- (?P<op>[\w.]+)-\d+ with a message:\n(?P<text>.*?)(?=^-- |^Summary:|\Z)", re.M | re.S)
_LOG_NODE = re.compile(r"ONNX node '<Node\((?P<op>\w+)\): (?P<node>.*?)>'")
# Lines of a message that speak of OpenVINO's sources and not of the model.
_NOISE = re.compile(r"^(Check '.*' failed at|FrontEnd API failed with|While validating ONNX node|Exception from) ?\S*")
_REFUSED_TYPES = {"NotSupportedONNXNode", "ONNXFrameworkNode", "ONNXSubgraphFrameworkNode", "FrameworkNode"}
# Types smaller than a byte: its Python interface packs two elements into one.
_PACKED = {"int4", "uint4", "uint1"}
_CONTROL_FLOW = {"If", "Loop", "Scan"}
_REMEDIES = {
    "If": "where its condition is constant, deploykit simplify MODEL -o OUT takes the branch; otherwise export the "
    "model without the branch, or make both branches give the same rank",
    "Loop": "export with a fixed number of steps, so that the loop unrolls",
    "Scan": "export with a fixed number of steps, so that the scan unrolls",
}
_SEQUENCE = "use Split and Concat on tensors in place of a sequence"
_UNTYPED = "give its input a known type and rank: the node before it that loses them is named too"
_AGAIN = "deploykit inspect MODEL shows what is in it; simplify or export it again"
_ASK = "rewrite it with operators that OpenVINO has, or keep this model in ONNX Runtime"


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """A node that OpenVINO refuses: an ONNX node name or one of its tensors, and why."""

    names: frozenset[str]
    reason: str


def support_job(
    model: str,
    options: Mapping[str, Any],
    dims: Mapping[str, Sequence[int | None]],
    profiles: Mapping[str, Any],
) -> dict[str, Any]:
    """A verdict for every node, subgraph bodies included; OpenVINO runs a model whole or not at all."""
    verdicts, whole = judge(Path(model), options.get("custom_ops"))
    refused = whole is not None or any(verdict.status == "unsupported" for _, verdict in verdicts)
    return {
        "source": front_end_label(),
        "nodes": [
            {
                "node": node.name or "",
                "op": node.op_type,
                "domain": node.domain,
                **verdict.as_dict(),
                "source": verdict.source or front_end_label(),
            }
            for node, verdict in verdicts
        ],
        "partitions": None if refused else 1,
        "findings": [] if whole is None else [failure("DK202", whole, target="openvino", hint=_AGAIN).as_dict()],
    }


def front_end_label() -> str:
    """Who says so."""
    return f"OpenVINO {versioned()} front-end"


def judge(path: Path, library: str | None = None) -> tuple[list[tuple[ir.Node, Verdict]], str | None]:
    """Verdicts in the order of the nodes, unnamed ones named, and the refusal of the whole model that names none.

    library: of extensions. Raises UsageError (DK231) when it does not load.
    """
    loaded = graph.load(path)
    original = {id(node): node.name for node in graph.all_nodes(loaded)}
    graph.name_nodes(loaded)
    core = core_with(library)
    converted, problems = front_end_problems(path, core, library)
    reasons: dict[int, Verdict] = {}
    nodes = list(graph.all_nodes(loaded))
    for node in nodes:
        keys = {original[id(node)] or node.name or "", *(value.name or "" for value in node.outputs)}
        found = [problem for problem in problems if problem.names & keys]
        if found:
            reasons[id(node)] = unsupported(found[0].reason, remedy=_remedy(node, found[0].reason))
            cause = _blame(node, found[0].reason, reasons)
            reasons[id(node)] = dataclasses.replace(reasons[id(node)], follows=cause)
    for node in nodes:
        _blame_holders(node, reasons)
    if problems and not reasons:
        told = unknown("OpenVINO refuses the model without naming a node", remedy=_AGAIN)
        return [(node, told) for node in nodes], problems[0].reason
    verdicts = [reasons.get(id(node)) or supported() for node in nodes]
    limits = load_limits("openvino")
    if limits is not None:
        verdicts = limits.correct(loaded, verdicts, installed=versioned())
    whole = None if converted is None else changed_interface(converted, *graph.interface(loaded))
    return list(zip(nodes, verdicts, strict=True)), whole


def changed_interface(converted: ov.Model, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> str | None:
    """What the front-end makes of the model's inputs and outputs, where it is not what the ONNX file says."""
    for kind, specs, ports in (("input", inputs, converted.inputs), ("output", outputs, converted.outputs)):
        names = [port.get_names() for port in ports]
        for spec in specs:
            if not any(spec.name in found for found in names):
                return (
                    f"OpenVINO leaves out {kind} {spec.name!r}, which its form of the model does not need: "
                    "leave it out of the ONNX model, too"
                )
        for spec, port in zip(specs, ports, strict=False):
            made = dtype_name(port.get_element_type())
            if made != spec.dtype:
                return f"{kind} {spec.name!r} is {spec.dtype} in the ONNX model and {made} in OpenVINO: Cast it there"
            if made in _PACKED:
                return f"{kind} {spec.name!r} is {made}, of which OpenVINO takes and gives no arrays: Cast it inside"
    return None


def front_end_problems(path: Path, core: ov.Core, library: str | None = None) -> tuple[ov.Model | None, list[Problem]]:
    """Every node that the front-end does not convert, or every operation that the CPU plugin does not take.

    The model comes first, as far as it could be read.
    """
    try:
        converted = core.read_model(path)
    except RuntimeError as problem:
        return None, _refusals(path, str(problem), library) or [Problem(frozenset(), _sentence(str(problem)))]
    try:
        taken = core.query_model(converted, "CPU")
    except RuntimeError as problem:
        if "bad_alloc" in str(problem):
            return converted, [Problem(frozenset(), _too_large(converted))]
        raise
    return converted, [
        Problem(_names(node), f"OpenVINO's CPU plugin has no {node.get_type_name()} like this one")
        for node in converted.get_ordered_ops()
        if node.get_friendly_name() not in taken
    ]


def _too_large(model: ov.Model) -> str:
    """The plugin takes memory for fixed shapes when it is asked: names the largest."""
    ports = [port for node in model.get_ordered_ops() for port in node.outputs() if port.get_partial_shape().is_static]
    sizes = [math.prod(port.get_shape()) * port.get_element_type().size for port in ports]
    nbytes, port = max(zip(sizes, ports, strict=True), key=lambda pair: pair[0])
    name = min(port.get_names(), default=port.get_node().get_friendly_name())
    told = f"{name!r} of shape {list(port.get_shape())} alone takes {nbytes / 2**30:,.1f} GiB"
    return f"OpenVINO finds no memory for the model: {told}"


def _refusals(path: Path, log: str, library: str | None) -> list[Problem]:
    """The front-end's log names operators and at most one node of each; the partly converted model has them all."""
    by_op = {entry["op"].rpartition(".")[2]: _sentence(entry["text"]) for entry in _LOG_ENTRY.finditer(log)}
    named = [
        Problem(frozenset({entry["node"]}), by_op.get(entry["op"], _sentence(log))) for entry in _LOG_NODE.finditer(log)
    ]
    front_end = FrontEndManager().load_by_framework("onnx")
    extend(front_end, library)
    try:
        # Framework nodes read the front-end's model when asked: without this name it is freed, and they crash.
        read = front_end.load(str(path))
        partly = front_end.convert_partially(read)
    except RuntimeError:  # it stops before the nodes: the log is all there is
        return named
    found = []
    for node in _all_ops(partly):
        if node.get_type_name() not in _REFUSED_TYPES:
            continue
        facts = node.get_attributes()
        op, domain = facts.get("ONNX_META_type", ""), facts.get("ONNX_META_domain", "")
        operator = f"{domain}.{op}" if domain else op
        reason = by_op.get(op) or f"OpenVINO has no conversion for the operator {operator}"
        found.append(Problem(_names(node), reason))
    return [*found, *named]


def _all_ops(model: ov.Model) -> Iterator[ov.Node]:
    for node in model.get_ordered_ops():
        yield node
        if hasattr(node, "get_then_body"):
            yield from _all_ops(node.get_then_body())
            yield from _all_ops(node.get_else_body())
        elif hasattr(node, "get_function"):
            yield from _all_ops(node.get_function())


def _names(node: ov.Node) -> frozenset[str]:
    tensors = {name for port in node.outputs() for name in port.get_names()}
    return frozenset({node.get_friendly_name(), *tensors})


def _blame(node: ir.Node, reason: str, reasons: dict[int, Verdict]) -> str:
    """Names the nodes whose untyped result made `node` fail: branches of unequal rank, and sequences.

    Returns the name of the nearest one, "" when there is none.
    """
    nearest = ""
    if "dynamic" not in reason and "rank" not in reason:
        return nearest
    seen: set[int] = set()
    pending = [value for value in node.inputs if value is not None]
    while pending:
        producer = pending.pop().producer()
        if producer is None or id(producer) in seen:
            continue
        seen.add(id(producer))
        if _loses_type(producer):
            failing = f"{node.op_type} {node.name!r}"
            told = f"its result has no type and rank that OpenVINO can infer, so {failing} fails: {reason}"
            reasons.setdefault(id(producer), unsupported(told, remedy=_remedy(producer, reason)))
            nearest = nearest or producer.name or ""
            if producer.op_type in _CONTROL_FLOW:
                continue  # what lies before it is typed, or has been named already
        pending += [value for value in producer.inputs if value is not None]
    return nearest


def _loses_type(node: ir.Node) -> bool:
    return node.op_type in _CONTROL_FLOW or "Sequence" in node.op_type.replace("ReverseSequence", "")


def _blame_holders(node: ir.Node, reasons: dict[int, Verdict]) -> None:
    """A node that holds a refused one in a branch or body is refused with it."""
    bodies = [a.as_graph() for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH]
    for body in bodies:
        for inner in ir.traversal.RecursiveGraphIterator(body):
            if id(inner) in reasons and inner.name:
                told = f"its branch holds {inner.op_type} {inner.name!r}, which OpenVINO refuses"
                held = dataclasses.replace(unsupported(told, remedy=_remedy(node, told)), follows=inner.name)
                reasons.setdefault(id(node), held)


def _remedy(node: ir.Node, reason: str) -> str:
    if "Sequence" in node.op_type:
        return _SEQUENCE
    if node.op_type in _REMEDIES:
        return _REMEDIES[node.op_type]
    return _UNTYPED if "dynamic" in reason or "rank" in reason else _ASK


def _sentence(text: str) -> str:
    """What a message says of the model, on one line."""
    lines = [line.strip() for line in text.splitlines()]
    told = [line for line in lines if line and not _NOISE.match(line)]
    return " ".join(told)[:400] or " ".join(lines)[:400]
