"""What any rewriting has to keep: the interface, random nodes, unknown ones, quantization."""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from deploykit import graph
from deploykit.report import Finding, failure

if TYPE_CHECKING:
    from collections.abc import Collection

    from deploykit.artifact import TensorSpec

_QUANTIZED = {"QuantizeLinear", "DequantizeLinear"}


def interface_differences(original: ir.Model, candidate: ir.Model) -> list[Finding]:
    """Failures for inputs and outputs whose name, order, dtype or shape differ; a symbol must keep its name."""
    found = []
    for kind, before, after in zip(
        ("input", "output"), graph.interface(original), graph.interface(candidate), strict=True
    ):
        names = [spec.name for spec in before], [spec.name for spec in after]
        if names[0] != names[1]:
            text = f"the {kind}s were {', '.join(names[0])} and became {', '.join(names[1])}"
            found.append(failure("DK633", text))
            continue
        for old, new in zip(before, after, strict=True):
            if not _same(old, new, exact=kind == "input"):
                text = f"{kind} {old.name!r} was {old.describe()} and became {new.describe()}"
                found.append(failure("DK633", text, tensor=old.name))
    return found


def _same(old: TensorSpec, new: TensorSpec, *, exact: bool) -> bool:
    """Equal, but an output whose size was not known may be told more precisely."""
    if old.dtype != new.dtype:
        return False
    if old.shape == new.shape or (old.shape is None and not exact):
        return True
    if old.shape is None or new.shape is None or exact or len(old.shape) != len(new.shape):
        return False
    return all(
        a == b or (isinstance(a, str) and not a.isidentifier()) for a, b in zip(old.shape, new.shape, strict=True)
    )


def kept_differences(original: ir.Model, candidate: ir.Model, requantized: Collection[str] = ()) -> list[Finding]:
    """Failures for nodes that must survive any rewriting: random ones, unknown ones, quantization.

    requantized: names of quantization nodes that need not, as `graph.name_nodes` gives them.
    """
    if requantized:
        graph.name_nodes(original)
    found = []
    for what, before, after in (
        ("random", random_nodes(original), random_nodes(candidate)),
        ("custom", unknown_nodes(original), unknown_nodes(candidate)),
    ):
        lost = Counter(map(_identity, before)) - Counter(map(_identity, after))
        for node in before:
            if _identity(node) in lost:
                text = f"the {what} node {node.name!r} ({node.op_type}) was removed or changed"
                found.append(failure("DK634", text, node=node.name, op=node.op_type))
    lost_scales = _count(original, requantized) - _count(candidate)
    if lost_scales > 0:
        text = f"{lost_scales} QuantizeLinear/DequantizeLinear nodes were removed: the quantization would be lost"
        found.append(failure("DK634", text))
    return found


def _count(model: ir.Model, without: Collection[str] = ()) -> int:
    return sum(node.op_type in _QUANTIZED and node.name not in without for node in graph.all_nodes(model))


def _identity(node: ir.Node) -> tuple[Any, ...]:
    attributes = sorted((name, str(attribute.value)) for name, attribute in node.attributes.items())
    return (node.domain, node.op_type, *map(str, attributes))


def random_nodes(model: ir.Model) -> list[ir.Node]:
    """Nodes that draw random numbers."""
    return [node for node in graph.all_nodes(model) if node.op_type in _SEEDED and node.domain in ("", "ai.onnx")]


_SEEDED = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli")


def pin_seeds(model: ir.Model) -> bool:
    """Gives every random node a seed of its own, from its attributes and how many like it came before."""
    changed = False
    before: Counter[Any] = Counter()
    for node in graph.all_nodes(model):
        drops = node.op_type == "Dropout" and len(node.inputs) > 2
        if (node.op_type in _SEEDED or drops) and node.domain in ("", "ai.onnx"):
            identity = _identity(node)
            before[identity] += 1
            text = f"{identity} {before[identity]}"
            seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:2], "big")
            node.attributes["seed"] = ir.AttrInt64("seed", seed) if drops else ir.AttrFloat32("seed", float(seed))
            changed = True
    return changed


@functools.cache
def _known_to_onnxruntime() -> frozenset[tuple[str, str]]:
    from onnxruntime.capi import onnxruntime_pybind11_state as runtime

    return frozenset((schema.domain, schema.name) for schema in runtime.get_all_operator_schema())


def unknown_nodes(model: ir.Model) -> list[ir.Node]:
    """Nodes that neither the ONNX standard nor onnxruntime nor the model's own functions define."""
    import onnx

    ours = {(function.domain, function.name) for function in model.functions.values()}
    contrib = _known_to_onnxruntime()
    found = []
    for node in graph.all_nodes(model):
        domain = "" if node.domain == "ai.onnx" else node.domain
        if (domain, node.op_type) in ours or (domain, node.op_type) in contrib:
            continue
        if not onnx.defs.has(node.op_type, domain):
            found.append(node)
    return found


def stand_in(model: ir.Model) -> list[str]:
    """Puts Identity of its first input in the place of each unknown node; returns their names with the operator."""
    named = []
    for node in unknown_nodes(model):
        named.append(f"{node.name or '(unnamed)'} ({node.op_type})")
        first = next((value for value in node.inputs if value is not None), None)
        owner = node.graph
        if owner is None or first is None:
            continue
        for output in node.outputs:
            replacement = ir.node("Identity", [first])
            owner.insert_before(node, replacement)
            made = replacement.outputs[0]
            output.replace_all_uses_with(made, replace_graph_outputs=True)
            made.name, output.name = output.name, None
            made.type = output.type or first.type
        owner.remove(node, safe=True)
    return named
