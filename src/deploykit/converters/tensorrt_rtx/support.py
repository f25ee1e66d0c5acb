"""What TensorRT-RTX takes, node by node: its own ONNX parser is the judge, and needs no GPU (runs in the worker)."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorrt_rtx as trt

from deploykit import graph
from deploykit.converters.profiles import resolve_sets
from deploykit.converters.tensorrt.findings import interface_changes
from deploykit.converters.tensorrt.options import settings
from deploykit.converters.tensorrt_rtx.network import shape_inputs
from deploykit.converters.tensorrt_rtx.options import compute_capabilities
from deploykit.converters.tensorrt_rtx.parser import NAME, check_model, load_plugins, parsed, source_label
from deploykit.opsupport.limits import load_limits
from deploykit.opsupport.verdict import Verdict, supported, unknown, unsupported
from deploykit.report import Finding, failure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx_ir as ir

    from deploykit.artifact import TensorSpec
    from deploykit.converters.profiles import ProfileSets
    from deploykit.converters.tensorrt.engine import ParseProblem

_TOP_K_LIMIT = 3840  # "K exceeds the maximum value allowed (3840)", said by the builder only, after parsing
_ASK = "rewrite it with operators that TensorRT has, or keep this part in another runtime"
_QUANTIZE = "deploykit quantize MODEL -o OUT --precision int8 --calib DATA --target tensorrt-rtx"
_REMEDIES = {
    "QLinearConv": f"quantize in Q/DQ form: {_QUANTIZE}",
    "QLinearMatMul": f"quantize in Q/DQ form: {_QUANTIZE}",
    "QuantizeLinear": f"TensorRT wants int8 with zero point 0: {_QUANTIZE}",
    "DequantizeLinear": f"TensorRT wants zero point 0 and a float bias: {_QUANTIZE}",
    "DynamicQuantizeLinear": f"quantize statically: {_QUANTIZE}",
    "If": "where its condition is constant, deploykit simplify MODEL -o OUT takes the branch; otherwise export without",
    "Loop": "export with a fixed number of steps, so that the loop unrolls",
}


def support_job(
    model: str,
    options: Mapping[str, Any],
    dims: Mapping[str, Sequence[int | None]],
    profiles: ProfileSets,
) -> dict[str, Any]:
    """A verdict for every node, subgraph bodies included, and what profiles are missing.

    Raises UsageError (DK522, DK527) for a bad option.
    """
    compute_capabilities(options, trt.ComputeCapability.__members__)
    settings(options, NAME)
    load_plugins(options.get("custom_ops"))
    path = Path(model)
    loaded = graph.load(path)
    _, findings = resolve_sets(graph.interface(loaded)[0], dims, profiles, target=NAME)
    problems, subgraphs = check_model(path)
    taken = {index for fine, nodes in subgraphs if fine for index in nodes}
    nodes: list[ir.Node] = []
    verdicts: list[Verdict] = []
    placed: set[int] = set()
    for index, top in enumerate(loaded.graph):
        bodies = [node for attribute in top.attributes.values() for node in _body_nodes(attribute)]
        for node in (top, *bodies):
            own = [p for p in problems if _is_about(p, node, index, top is node)]
            placed.update(map(id, own))
            nodes.append(node)
            verdicts.append(_verdict(node, own, taken=index in taken or not problems))
    verdicts = _with_limits(loaded, nodes, verdicts)
    # A problem inside a function or a name that the graph does not have must not get lost.
    findings += [_unplaced(problem) for problem in problems if id(problem) not in placed]
    if not problems and all(verdict.runs for verdict in verdicts):
        findings += _network_problems(path, *graph.interface(loaded))
    return {
        "source": source_label(),
        "nodes": [
            {
                "node": node.name or "",
                "op": node.op_type,
                "domain": node.domain,
                **verdict.as_dict(),
                "source": verdict.source or source_label(),
            }
            for node, verdict in zip(nodes, verdicts, strict=True)
        ],
        "partitions": len(subgraphs) or None,
        "findings": [finding.as_dict() for finding in findings],
    }


def _with_limits(model: ir.Model, nodes: Sequence[ir.Node], verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The parser's verdicts with what the builder says only later."""
    limits = load_limits(NAME)
    if limits is None:
        return list(verdicts)
    said = {id(node): verdict for node, verdict in zip(nodes, verdicts, strict=True)}
    ordered = list(graph.all_nodes(model))
    corrected = limits.correct(model, [said[id(node)] for node in ordered], installed=trt.__version__)
    said = {id(node): verdict for node, verdict in zip(ordered, corrected, strict=True)}
    return [said[id(node)] for node in nodes]


def _network_problems(path: Path, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> list[Finding]:
    """What stands against the whole network, though every node of it is taken."""
    with parsed(path) as network:
        if network is None:
            return []
        changed = [
            dataclasses.replace(finding, code="DK202") for finding in interface_changes(network, inputs, outputs, NAME)
        ]
        deciding = [
            failure(
                "DK202",
                f"the values of input {name!r} decide shapes inside the model, which an engine takes only with bounds "
                "of the values",
                target=NAME,
                tensor=name,
                hint="make it an initializer: its values are then fixed in the engine",
            )
            for name in shape_inputs(network)
        ]
    return [*changed, *deciding]


def _body_nodes(attribute: ir.Attr) -> list[ir.Node]:
    """Nodes of the graphs an If, Loop or Scan holds, at any depth."""
    import onnx_ir as ir

    if attribute.type == ir.AttributeType.GRAPH:
        return list(ir.traversal.RecursiveGraphIterator(attribute.as_graph()))
    if attribute.type == ir.AttributeType.GRAPHS:
        return [node for body in attribute.as_graphs() for node in ir.traversal.RecursiveGraphIterator(body)]
    return []


def _is_about(problem: ParseProblem, node: ir.Node, index: int, top_level: bool) -> bool:
    """Names are unique where there are any; the index counts the nodes of whichever graph the problem lies in."""
    if problem.op != node.op_type:
        return False
    if problem.node:
        return problem.node == node.name
    return top_level and problem.index == index


def _unplaced(problem: ParseProblem) -> Finding:
    where = f"{problem.node or 'a node'} ({problem.op})" if problem.op else "the model"
    return failure(
        "DK202",
        f"{source_label()} refuses {where}: {problem.reason}",
        target=NAME,
        node=problem.node or None,
        op=problem.op,
        hint=_REMEDIES.get(problem.op, _ASK),
    )


def _verdict(node: ir.Node, problems: Sequence[ParseProblem], *, taken: bool) -> Verdict:
    if problems:
        return unsupported(problems[0].reason, remedy=_REMEDIES.get(node.op_type, _ASK))
    if node.op_type == "TopK" and (count := _constant(node, 1)) is not None and count > _TOP_K_LIMIT:
        return unsupported(
            f"TopK takes at most K = {_TOP_K_LIMIT}, this one has {count}",
            remedy="take fewer, or Sort outside the engine",
            source=source_label().replace("parser", "builder"),
        )
    if taken:
        return supported()
    return unknown(
        "the parser did not get to it: it depends on a node that is refused",
        remedy="solve the refused nodes first, then check again",
    )


def _constant(node: ir.Node, position: int) -> int | None:
    value = node.inputs[position] if len(node.inputs) > position else None
    if value is None:
        return None
    if value.const_value is not None:
        return int(value.const_value.numpy().reshape(-1)[0])
    producer = value.producer()
    if producer is not None and producer.op_type == "Constant" and "value" in producer.attributes:
        return int(producer.attributes["value"].as_tensor().numpy().reshape(-1)[0])
    return None
