"""Conditions of the operator tables: what has to hold of a node so that a target takes it.

A condition is a mapping of kind, subject, rule (the documentation's words) and machine: the name of a check with its
arguments. What no check expresses has the words only, and cannot be told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deploykit.opsupport.attribute_checks import ATTRIBUTE_CHECKS, applies
from deploykit.opsupport.outcome import FIX, HOLDS, Outcome, broken, ranges, untold
from deploykit.opsupport.tensor_checks import TENSOR_CHECKS
from deploykit.opsupport.words import words_only

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from deploykit.opsupport.facts import NodeFacts

CHECKS: dict[str, Callable[[Mapping[str, Any], NodeFacts], Outcome]] = {**ATTRIBUTE_CHECKS, **TENSOR_CHECKS}
# Checks that look at the opset, which a node has by its model.
_VERSION_CHECKS = ("opset_in", "since_version_max")


def holds(condition: Mapping[str, Any], node: NodeFacts, model_opset: int) -> bool | None:
    """Whether the condition holds for the node; None when it cannot be told.

    model_opset: version of ONNX's own operators that the model imports.
    """
    return outcome(condition, node, model_opset).holds


def outcome(condition: Mapping[str, Any], node: NodeFacts, model_opset: int) -> Outcome:
    """Whether the condition holds, what is the case where it does not for certain, and what to do then."""
    machine = condition["machine"]
    name = machine["check"]
    if name in _VERSION_CHECKS:
        return _version(machine, node, model_opset)
    check = CHECKS.get(name)
    if check is None:
        return words_only(condition, node)
    found = check(_meant(condition), node)
    if found.holds or "when" not in machine:
        return found
    needed = applies(node, machine["when"])
    if needed is False:
        return HOLDS
    return found if needed else untold(found.fact, found.remedy)


def _meant(condition: Mapping[str, Any]) -> Mapping[str, Any]:
    machine: Mapping[str, Any] = condition["machine"]
    return {**machine, "inputs_only": True} if condition["subject"] == "any input" else machine


def _version(machine: Mapping[str, Any], node: NodeFacts, model_opset: int) -> Outcome:
    remedy = f"export the model with another opset, or {FIX} converts it"
    if machine["check"] == "opset_in":
        if any(low <= model_opset and (high is None or model_opset <= high) for low, high in machine["ranges"]):
            return HOLDS
        return broken(f"the model's opset is {model_opset}, {ranges(machine['ranges'])} is taken", remedy)
    if node.since is None:
        return untold(f"the version of {node.op} is unknown, up to {machine['max']} is taken", remedy)
    if node.since <= machine["max"]:
        return HOLDS
    return broken(f"{node.op} is of version {node.since}, up to {machine['max']} is taken", remedy)
