"""What Core ML takes, node by node: the lowerings themselves are the judge (runs in the worker)."""

from __future__ import annotations

import dataclasses
import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import coremltools as ct

from deploykit import graph
from deploykit.converters.coreml.frontend import SOURCE, Judged, build, door_type, judge
from deploykit.converters.coreml.options import deployment_target
from deploykit.converters.coreml.shapes import plan
from deploykit.converters.profiles import Profile, resolve_profiles
from deploykit.opsupport.verdict import Verdict, conditional, supported, unknown
from deploykit.report import Finding, failure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx_ir as ir

    from deploykit.artifact import TensorSpec

NAME = "coreml"
NEEDS_BOUNDS = "DK520"


def support_job(
    model: str,
    options: Mapping[str, Any],
    dims: Mapping[str, Sequence[int | None]],
    profiles: Mapping[str, Profile],
) -> dict[str, Any]:
    """A verdict for every node: its rule's predicate, and when all agree, its lowering tried in memory.

    Raises UsageError (DK527) for a bad option.
    """
    target = deployment_target(options)
    loaded = graph.infer_shapes(graph.load(Path(model)))
    graph.name_nodes(loaded)
    inputs, outputs = graph.interface(loaded)
    shapes, findings = resolve_profiles(inputs, dims, profiles, target=NAME)
    if not any(finding.severity == "error" for finding in findings):
        _, planned = plan(inputs, dims, profiles, shapes, target)
        findings += [finding for finding in planned if finding.severity == "error"]
    # What no input or output can hold stops the model, unlike a bound that is still missing.
    findings += [dataclasses.replace(finding, code="DK202") for finding in interface_problems(inputs, outputs)]
    stopped = {finding.code for finding in findings if finding.severity == "error"}
    if stopped and (stopped != {NEEDS_BOUNDS} or any(spec.shape is None for spec in inputs)):
        judged = judge(loaded, fixed_dims(dims), ct.target[target])
    else:
        judged = build(loaded, inputs, outputs, fixed_dims(dims), ct.target[target]).judged
    if stopped == {NEEDS_BOUNDS}:
        judged = _with_open_sizes(judged, _open(inputs, dims, profiles))
    rows = _with_bodies(loaded, {id(row.node.raw): row.verdict for row in judged})
    return {
        "source": SOURCE,
        "nodes": [
            {
                "node": node.name,
                "op": node.op_type,
                "domain": node.domain,
                **verdict.as_dict(),
                "source": verdict.source or SOURCE,
            }
            for node, verdict in rows
        ],
        "partitions": None,
        "findings": [finding.as_dict() for finding in findings],
    }


def _open(
    inputs: Sequence[TensorSpec], dims: Mapping[str, Sequence[int | None]], profiles: Mapping[str, Profile]
) -> list[str]:
    """Dimensions without an upper bound, in the order of the inputs."""
    names = (
        size
        for spec in inputs
        if spec.name not in profiles
        for size in spec.shape or ()
        if isinstance(size, str) and (size not in dims or dims[size][1] is None)
    )
    return list(dict.fromkeys(names))


def _with_open_sizes(judged: Sequence[Judged], names: Sequence[str]) -> list[Judged]:
    """What was only refused because sizes are open is taken on a condition: fixed or bounded ones may be taken."""
    words = " ".join(shlex.join(["--dim", f"{name}=SIZE"]) for name in names)
    remedy = f"say which sizes are in use: {words}, where SIZE is one number, MIN..MAX, or numbers like 32,64"
    return [
        Judged(row.node, conditional(f"not with all sizes open: {row.verdict.reason}", remedy=remedy, source=SOURCE))
        if row.tried and not row.verdict.runs
        else row
        for row in judged
    ]


def _with_bodies(model: ir.Model, said: Mapping[int, Verdict]) -> list[tuple[ir.Node, Verdict]]:
    """Every node in the order of `graph.all_nodes`: a body is lowered with the node that holds it."""
    import onnx_ir as ir

    verdicts = dict(said)
    for top in model.graph:
        held = said.get(id(top))
        bodies = [a.as_graph() for a in top.attributes.values() if a.type == ir.AttributeType.GRAPH]
        if held is None or not bodies:
            continue
        inside = supported(SOURCE)
        if not held.runs:
            told = f"it lies in a body of {top.name!r}, which is refused"
            inside = unknown(told, remedy="solve the refused node first, then check again", source=SOURCE)
        verdicts.update((id(node), inside) for body in bodies for node in ir.traversal.RecursiveGraphIterator(body))
    apart = unknown(
        "it is in a function of the model",
        remedy="inline the model's functions: deploykit simplify MODEL -o OUT",
        source=SOURCE,
    )
    return [(node, _fed_shape(node, verdicts.get(id(node), apart))) for node in graph.all_nodes(model)]


def _fed_shape(node: ir.Node, verdict: Verdict) -> Verdict:
    """A Reshape to a shape that is fed: where that is 0 ONNX copies the dimension, and the lowering cannot see it."""
    allowed = node.attributes.get("allowzero")
    if node.op_type != "Reshape" or not verdict.runs or (allowed is not None and allowed.as_int()):
        return verdict
    shape = node.inputs[1] if len(node.inputs) > 1 else None
    if shape is None or not shape.is_graph_input():
        return verdict
    return conditional(
        f"the values are right as long as {shape.name!r} holds no 0", remedy="make it an initializer", source=SOURCE
    )


def fixed_dims(dims: Mapping[str, Sequence[int | None]]) -> dict[str, int]:
    """Symbols whose bounds leave one size."""
    return {name: int(low) for name, (low, high, *_) in dims.items() if low is not None and low == high}


def interface_problems(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> list[Finding]:
    """Inputs and outputs that Core ML cannot have."""
    found = _shared_names(inputs, outputs)
    for kind, specs in (("input", inputs), ("output", outputs)):
        for spec in specs:
            if door_type(spec.dtype) is None:
                found.append(
                    failure(
                        "DK529",
                        f"{kind} {spec.name!r} is {spec.dtype}, which Core ML's interface cannot hold",
                        target=NAME,
                        tensor=spec.name,
                        hint="make it float32, float16 or int32 in the model",
                    )
                )
            if spec.shape is not None and len(spec.shape) > 5:
                found.append(
                    failure(
                        "DK529",
                        f"{kind} {spec.name!r} has rank {len(spec.shape)}, and Core ML takes at most 5",
                        target=NAME,
                        tensor=spec.name,
                        hint="merge dimensions in the model",
                    )
                )
    return found


def _shared_names(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> list[Finding]:
    """A name stands for one thing in a Core ML function: an input, or one output."""
    found = []
    given = {spec.name for spec in inputs}
    outgoing = Counter(spec.name for spec in outputs)
    for name, times in outgoing.items():
        why = "is also an input" if name in given else f"is listed {times} times" if times > 1 else ""
        if why:
            found.append(
                failure(
                    "DK202",
                    f"output {name!r} {why}, and Core ML's inputs and outputs have a name each",
                    target=NAME,
                    tensor=name,
                    hint="give the output a name of its own, with an Identity node, or leave it out",
                )
            )
    return found
