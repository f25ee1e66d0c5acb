"""The registry of an engine's rules, and how their verdicts are worded."""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING

from deploykit import graph
from deploykit.opsupport.facts import facts_of
from deploykit.opsupport.verdict import Status, Verdict, conditional, unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import onnx_ir as ir

    from deploykit.opsupport.facts import NodeFacts, TensorFacts

    Rule = Callable[[NodeFacts], Verdict | None]

ANY = "*"
_MODULES = {
    "onnxruntime": "deploykit.opsupport.limits.onnxruntime",
    "openvino": "deploykit.opsupport.limits.openvino",
    "tensorrt-rtx": "deploykit.opsupport.limits.tensorrt_rtx",
}


class Limits:
    """Rules of one engine, as measured in one version of it."""

    def __init__(self, engine: str, version: str) -> None:
        """engine: as people call it ("OpenVINO"); version: the one that the rules were measured on."""
        self.engine = engine
        self.version = version
        self._rules: dict[str, list[Rule]] = {}

    @property
    def source(self) -> str:
        """Who says so."""
        return f"measured on {self.engine} {self.version}"

    def rule(self, *operators: str) -> Callable[[Rule], Rule]:
        """Registers a rule for operators of ONNX's own domain, or for every node (ANY)."""

        def register(function: Rule) -> Rule:
            for operator in operators:
                self._rules.setdefault(operator, []).append(function)
            return function

        return register

    def concerns(self, domain: str, operator: str) -> bool:
        """Whether there may be something to say of such a node; facts cost shape inference."""
        return domain in ("", "ai.onnx") and (operator in self._rules or ANY in self._rules)

    def judge(self, node: NodeFacts, *, installed: str | None = None) -> Verdict | None:
        """What stands against a node; None when nothing is known to.

        installed: the version that is going to run it. Another one than was measured may have learnt better: what would
        be a refusal is a condition then.
        """
        if node.domain not in ("", "ai.onnx"):
            return None
        found = [verdict for rule in self._rules_of(node.op) if (verdict := rule(node)) is not None]
        if not found:
            return None
        first = min(found, key=lambda verdict: verdict.status is not Status.UNSUPPORTED)
        made = Verdict(first.status, first.reason, first.remedy, self.source)
        if installed is None or installed == self.version or first.status is not Status.UNSUPPORTED:
            return made
        told = f"in {self.engine} {self.version} {first.reason}; {installed} was not measured"
        return conditional(told, remedy="deploykit validate compares the values", source=self.source)

    def correct(self, model: ir.Model, verdicts: Sequence[Verdict], *, installed: str | None = None) -> list[Verdict]:
        """An engine's verdicts, in the order of `graph.all_nodes`, with what it does not know of itself."""
        nodes = list(graph.all_nodes(model))
        if not any(self.concerns(node.domain, node.op_type) for node in nodes):
            return list(verdicts)
        return [
            (verdict.status is not Status.UNSUPPORTED and self.judge(facts, installed=installed)) or verdict
            for verdict, facts in zip(verdicts, facts_of(model), strict=True)
        ]

    def _rules_of(self, operator: str) -> list[Rule]:
        return [*self._rules.get(operator, ()), *self._rules.get(ANY, ())]


@functools.cache
def load_limits(engine: str) -> Limits | None:
    """The rules of an engine by its target's name; None when there are none."""
    module = _MODULES.get(engine)
    if module is None:
        return None
    found: Limits = importlib.import_module(module).LIMITS
    return found


def wrong(reason: str, *, remedy: str) -> Verdict:
    """The engine takes the node, and what it computes is not what ONNX says."""
    return unsupported(f"takes it and computes wrong values: {reason}", remedy=remedy)


def fails(reason: str, *, remedy: str) -> Verdict:
    """The engine takes the node and stops at it later: when it builds, or at the first call."""
    return unsupported(f"takes it and fails later: {reason}", remedy=remedy)


def right_while(condition: str, *, remedy: str) -> Verdict:
    """Values decide: the node is computed rightly as long as the condition holds."""
    return conditional(f"the values are right as long as {condition}", remedy=remedy)


def given(node: NodeFacts, position: int) -> TensorFacts | None:
    """The input at a position; None when it is left out."""
    return node.inputs[position] if len(node.inputs) > position else None


def produced(node: NodeFacts, position: int) -> TensorFacts | None:
    """The output at a position; None when nobody asked for it."""
    return node.outputs[position] if len(node.outputs) > position else None


def sizes(tensor: TensorFacts | None) -> tuple[int, ...] | None:
    """The shape, when every dimension of it is a number."""
    if tensor is None or tensor.shape is None:
        return None
    known = tuple(size for size in tensor.shape if isinstance(size, int))
    return known if len(known) == len(tensor.shape) else None


def text(node: NodeFacts, name: str, default: str) -> str:
    """An attribute that is text."""
    value = node.attributes.get(name, default)
    return value.decode() if isinstance(value, bytes) else str(value)


def scaled_corners(node: NodeFacts) -> Verdict | None:
    """Resize by `scales` that give no whole sizes, with the corners aligned.

    ONNX computes coordinates from length x scale, unrounded (Resize-19, align_corners); engines use the rounded size.
    """
    if text(node, "coordinate_transformation_mode", "half_pixel") != "align_corners":
        return None
    scales, data = given(node, 2), given(node, 0)
    if scales is None or data is None or scales.shape in ((0,), None):
        return None
    whole = "whole numbers come out when sizes are multiplied by the scales"
    remedy = "give Resize the output sizes in place of scales"
    values = scales.value
    axes = node.attributes.get("axes") or range(len(data.shape or ()))
    if values is None or data.shape is None or len(values) != len(axes):
        return right_while(whole, remedy=remedy)
    for axis, scale in zip(axes, values, strict=True):
        size = data.shape[axis]
        if not isinstance(size, int):
            if float(scale) != int(scale):
                return right_while(whole, remedy=remedy)
        elif abs(size * float(scale) - round(size * float(scale))) > 1e-4:
            told = f"scale {float(scale):.6g} of axis {axis} gives no whole number of its {size}, with corners aligned"
            return wrong(told, remedy=remedy)
    return None
