"""What ONNX Runtime's CPU provider takes, node by node: the installed engine's session and kernels (in the worker)."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import onnxruntime as ort
from onnx import defs
from onnxruntime.capi import onnxruntime_pybind11_state as native

from deploykit import graph, io
from deploykit.converters.onnxruntime.providers import CPU
from deploykit.converters.onnxruntime.runtime import open_session, session_options, with_library
from deploykit.errors import GateError, ModelError
from deploykit.graph.extraction import NodeModels
from deploykit.opsupport.limits import load_limits
from deploykit.opsupport.registry import since_version
from deploykit.opsupport.verdict import Verdict, supported, unknown, unsupported
from deploykit.report import Finding, failure, note

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from deploykit.runtime import RuntimeOptions

_OPEN_END = 2**31 - 1
# The ways in which ONNX Runtime's errors name a node.
_NAMED = (
    re.compile(r"node with name '(?P<node>[^']*)'"),
    re.compile(r'In Node, \("(?P<node>[^"]*)"'),
    re.compile(r"Node \((?P<node>[^)]*)\) Op \("),
    re.compile(r"Node:(?P<node>\S+) "),
    re.compile(r" of node \((?P<node>[^)]*)\)"),
)
_REWRITE = "rewrite it with ONNX operators"
_AGAIN = "deploykit inspect MODEL shows what is in it; simplify or export it again"


@dataclasses.dataclass(frozen=True, slots=True)
class KernelDef:
    """One registered kernel: the operator revisions it covers, and its types by constraint name."""

    first: int
    last: int
    types: Mapping[str, frozenset[str]]

    def covers(self, since: int) -> bool:
        """Open-ended: only the revision it starts at; closed: any inside (ONNX Runtime's kernel_registry.cc)."""
        return since == self.first if self.last == _OPEN_END else self.first <= since <= self.last


def support_job(
    model: str,
    options: Mapping[str, Any],
    dims: Mapping[str, Sequence[int | None]],
    profiles: Mapping[str, Any],
) -> dict[str, Any]:
    """A verdict for every node, bodies and functions included: the engine loads the model, or its kernels say why not.

    ONNX Runtime's CPU provider is the last resort of every session: a model runs whole or not at all.
    """
    path = Path(model)
    loaded = graph.load(path)
    asked = with_library(options)
    refusal = _refusal(path, asked)
    if refusal is not None or graph.precision_of(loaded) == "fp16":
        loaded = graph.infer_shapes(loaded)
    original = {id(node): node.name for node in graph.all_nodes(loaded)}
    graph.name_nodes(loaded)
    nodes = list(graph.all_nodes(loaded))
    findings = list(_half_precision(loaded, nodes))
    if refusal is None:
        verdicts = [supported()] * len(nodes)
        limits = load_limits("onnxruntime")
        if limits is not None:
            verdicts = limits.correct(loaded, verdicts, installed=ort.__version__)
    else:
        named = _named_node(refusal)
        verdicts = [_judge(node, loaded, refusal if named and original[id(node)] == named else None) for node in nodes]
        if asked.custom_ops:
            verdicts = _with_custom_ops(loaded, nodes, verdicts, asked)
        if all(verdict.runs for verdict in verdicts):
            told = "ONNX Runtime refuses the model without naming a node"
            verdicts = [unknown(told, remedy=_AGAIN)] * len(nodes)
            findings.append(failure("DK202", refusal, target="onnxruntime", hint=_AGAIN))
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
        "partitions": 1 if refusal is None and all(verdict.runs for verdict in verdicts) else None,
        "findings": [finding.as_dict() for finding in findings],
    }


def source_label() -> str:
    """Who says so."""
    return f"ONNX Runtime {ort.__version__}, CPU provider"


def _refusal(path: Path, options: RuntimeOptions) -> str | None:
    """Why the engine does not load the model; None when it does."""
    try:
        open_session(path, session_options(options))
    except (GateError, ModelError) as problem:
        return problem.message
    return None


def _with_custom_ops(
    model: ir.Model, nodes: Sequence[ir.Node], verdicts: Sequence[Verdict], options: RuntimeOptions
) -> list[Verdict]:
    """The verdicts, but of operators that only the library may have: it lists none, so each is loaded alone."""
    alone = NodeModels(model)
    found = []
    for node, verdict in zip(nodes, verdicts, strict=True):
        domain = "" if node.domain == "ai.onnx" else node.domain
        unknown_here = not verdict.runs and since_version(domain, node.op_type, _OPEN_END) is None
        found.append(_asked_alone(alone, node.name or "", verdict, options) if unknown_here else verdict)
    return found


def _asked_alone(models: NodeModels, name: str, verdict: Verdict, options: RuntimeOptions) -> Verdict:
    try:
        with io.scratch_folder() as folder:
            path = Path(folder) / "node.onnx"
            graph.save(models.take(name), path)
            return supported() if _refusal(path, options) is None else verdict
    except ModelError as problem:  # behind another custom operator, whose result has no declared type
        return unknown(f"whether the library has it cannot be asked: {problem.message}", remedy=problem.hint or _AGAIN)


def _named_node(message: str) -> str | None:
    return next((found["node"] for pattern in _NAMED if (found := pattern.search(message))), None)


def _judge(node: ir.Node, model: ir.Model, refusal: str | None) -> Verdict:
    static = kernel_verdict(node, model)
    if refusal is not None and static.runs:
        return unsupported(refusal, remedy="the model contradicts itself here: export it again")
    return static


def kernel_verdict(node: ir.Node, model: ir.Model) -> Verdict:
    """What the registered kernels say of a node, by operator revision and types."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    operator = f"{domain}.{node.op_type}" if domain else node.op_type
    if any(key[:2] == (node.domain, node.op_type) for key in model.functions):
        return supported()
    if (domain, node.op_type) == ("", "Constant"):
        return supported()  # becomes an initializer when the model is loaded
    kernels = _kernels().get((domain, node.op_type), [])
    opset = node.version or model.opset_imports.get(node.domain) or graph.opset(model)
    since = since_version(domain, node.op_type, opset)
    if since is None:
        if domain and kernels:
            return supported()
        if not kernels:
            return unsupported(f"ONNX Runtime {ort.__version__} knows no operator {operator}", remedy=_REWRITE)
        first = _first_opset(node.op_type)
        if first is None or node.op_type in _EARLIER_HERE:
            return supported()  # one of ONNX Runtime's own in the standard's name space: SimplifiedLayerNormalization
        return unsupported(
            f"opset {opset} has no operator {operator}: it came with opset {first}",
            remedy=f"deploykit export MODEL -o OUT --opset {first}",
        )
    fitting = [kernel for kernel in kernels if kernel.covers(since)]
    if not fitting:
        return _without_kernel(operator, domain, opset, since, kernels)
    types = _types_of(node, domain, opset)
    reasons = [_misfit(kernel, types) for kernel in fitting]
    if all(reasons):
        return unsupported(
            f"its CPU kernel takes {reasons[0]}", remedy="cast its input to a type that the kernel takes"
        )
    return supported()


def _first_opset(operator: str) -> int | None:
    found = [schema.since_version for schema in defs.get_all_schemas_with_history() if schema.name == operator]
    return min(found, default=None)


def _without_kernel(operator: str, domain: str, opset: int, since: int, kernels: Sequence[KernelDef]) -> Verdict:
    name = operator.rpartition(".")[2]
    schema = defs.get_schema(name, max_inclusive_version=opset, domain=domain)
    if schema.has_function or schema.has_context_dependent_function:
        return supported()  # ONNX Runtime inlines the body that the standard gives
    if kernels:
        newer = [kernel.first for kernel in kernels if kernel.first > since]
        older = len(newer) < len(kernels)
        wanted = since - 1 if older else max(min(newer), _LOWEST_EXPORTED)
        return unsupported(
            f"opset {opset} means {operator} as revised in opset {since}, for which ONNX Runtime {ort.__version__} has "
            f"no CPU kernel; it has one for {'an older' if older else 'a newer'} revision",
            remedy=f"use an opset {f'below {since}' if older else f'from {wanted} on'}: "
            f"deploykit export MODEL -o OUT --opset {wanted}",
        )
    return unsupported(
        f"ONNX Runtime {ort.__version__} has no CPU kernel for {operator}", remedy="rewrite it with other operators"
    )


# The least that `deploykit export --opset` takes.
_LOWEST_EXPORTED = 7
# ONNX Runtime had it before the standard did, and takes it at any opset.
_EARLIER_HERE = {"LayerNormalization"}


@functools.cache
def _kernels() -> dict[tuple[str, str], list[KernelDef]]:
    found = defaultdict(list)
    for kernel in native.get_all_opkernel_def():
        if kernel.provider == CPU:
            first, last = kernel.version_range
            types = {name: frozenset(kinds) for name, kinds in kernel.type_constraints.items()}
            domain = "" if kernel.domain == "ai.onnx" else kernel.domain
            found[domain, kernel.op_name].append(KernelDef(first, last, types))
    return dict(found)


def _types_of(node: ir.Node, domain: str, opset: int) -> dict[str, str]:
    """The node's types by constraint name ("T": "tensor(float)"), as far as they are known."""
    try:
        schema = defs.get_schema(node.op_type, max_inclusive_version=opset, domain=domain)
    except defs.SchemaError:
        return {}
    found: dict[str, str] = {}
    for formals, values in ((schema.inputs, node.inputs), (schema.outputs, node.outputs)):
        for index, value in enumerate(values):
            if value is None or value.dtype is None or not formals:
                continue
            formal = formals[min(index, len(formals) - 1)]
            if value.type is None or isinstance(value.type, ir.TensorType):
                found.setdefault(formal.type_str, f"tensor({value.dtype.name.lower()})")
    return found


def _misfit(kernel: KernelDef, types: Mapping[str, str]) -> str | None:
    """What the kernel takes in place of what it would get; None when it fits."""
    for name, kind in types.items():
        allowed = kernel.types.get(name)
        # A float16 node without a float16 kernel gets casts around a float32 one.
        if allowed and kind not in allowed and not (kind == "tensor(float16)" and "tensor(float)" in allowed):
            return f"{' or '.join(sorted(allowed))} for {name}, and this node has {kind}"
    return None


def _half_precision(model: ir.Model, nodes: Sequence[ir.Node]) -> Iterator[Finding]:
    """Says how much of a float16 model the CPU computes in float32."""
    half = [node for node in nodes if any(v is not None and v.dtype == ir.DataType.FLOAT16 for v in node.inputs)]
    half = [node for node in half if node.op_type not in ("Cast", "Constant", "Identity", "Reshape")]
    cast = [node for node in half if not _has_half_kernel(node, model)]
    if cast:
        yield note(
            "DK205",
            f"{len(cast)} of {len(half)} float16 nodes have no float16 kernel on the CPU: ONNX Runtime computes them "
            "in float32 between casts, so the file is smaller and the model not faster there",
            target="onnxruntime",
            hint="float16 pays on a GPU or NPU; on the CPU use int8 or stay with float32",
        )


def _has_half_kernel(node: ir.Node, model: ir.Model) -> bool:
    domain = "" if node.domain == "ai.onnx" else node.domain
    since = since_version(domain, node.op_type, graph.opset(model))
    half = "tensor(float16)"
    return any(
        kernel.covers(since or 1) and any(half in kinds for kinds in kernel.types.values())
        for kernel in _kernels().get((domain, node.op_type), [])
    )
