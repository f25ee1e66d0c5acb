"""Conditions on a node's attributes, one function for each check of the operator tables."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

from deploykit.opsupport.outcome import FIX, HOLDS, Outcome, broken, given, label, listed, untold

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from deploykit.opsupport.facts import NodeFacts

_EXPORT = "export the model with another value"
_KERNEL_IS_INPUT_1 = ("Conv", "ConvTranspose", "ConvInteger", "DeformConv", "FusedConv")


class _Missing:
    """Stands for an attribute that is neither given nor has a default."""


MISSING = _Missing()


@functools.lru_cache(maxsize=4096)
def _schema_default(domain: str, op: str, since: int, name: str) -> Any:
    from onnx import defs, helper

    try:
        schema = defs.get_schema(op, max_inclusive_version=since, domain=domain)
    except defs.SchemaError:
        return MISSING
    attribute = schema.attributes.get(name)
    if attribute is None or not attribute.default_value.name:
        return MISSING
    value = helper.get_attribute_value(attribute.default_value)
    return value.decode() if isinstance(value, bytes) else value


def effective(node: NodeFacts, name: str, default: Any = MISSING) -> Any:
    """The attribute's value: given, or the table's default, or the standard's; MISSING otherwise.

    None for one that refers to an attribute of the function around the node.
    """
    if name in node.attributes:
        return node.attributes[name]
    if not isinstance(default, _Missing):
        return default
    return MISSING if node.since is None else _schema_default(node.domain, node.op, node.since, name)


def applies(node: NodeFacts, when: Mapping[str, Any]) -> bool | None:
    """Whether a condition's `when` is fulfilled, so that the condition has to be looked at."""
    value = effective(node, when["attr"], when.get("default", MISSING))
    return None if value is None else bool(value == when["equals"])


def _checked(
    check: Callable[[Any, Mapping[str, Any]], str | None], *, defaults: bool = False, needed: bool = False
) -> Callable[..., Outcome]:
    """A check of one attribute: `check` gets the value and says what is wrong with it.

    defaults: whether a missing one is what the table or the standard says; otherwise it fulfils the condition.
    needed: whether one that is missing, and has no default, does not fulfil it.
    """

    def checked(machine: Mapping[str, Any], node: NodeFacts) -> Outcome:
        name = machine["attr"]
        given_value = node.attributes.get(name, MISSING)
        value = effective(node, name, machine.get("default", MISSING)) if defaults else given_value
        if value is None:
            return untold(f"attribute {name!r} is that of the function around the node", f"{FIX} inlines functions")
        if isinstance(value, _Missing):
            if not needed or machine.get("absent_ok"):
                return HOLDS
            return broken(f"attribute {name!r} is not given", _EXPORT)
        wrong = check(value, machine)
        return HOLDS if wrong is None else broken(f"attribute {name!r} is {value}, {wrong}", f"{FIX}, or {_EXPORT}")

    return checked


def _equals(value: Any, machine: Mapping[str, Any]) -> str | None:
    return None if value == machine["value"] else f"only {machine['value']} is taken"


def _is_in(value: Any, machine: Mapping[str, Any]) -> str | None:
    return None if value in machine["values"] else f"only {listed(machine['values'])} is taken"


def _each_in(values: Sequence[Any], machine: Mapping[str, Any]) -> str | None:
    return None if set(values) <= set(machine["values"]) else f"only {listed(machine['values'])} are taken"


def _each_in_ci(values: Sequence[str], machine: Mapping[str, Any]) -> str | None:
    return _each_in([value.casefold() for value in values], {"values": [v.casefold() for v in machine["values"]]})


def _in_list_ci(values: Sequence[str], machine: Mapping[str, Any]) -> str | None:
    wanted = [value.casefold() for value in machine["values"]]
    same = [value.casefold() for value in values] == wanted[: len(values)]
    return None if same else f"only {', '.join(machine['values'])} are taken, in this order"


def _all_equal(values: Sequence[Any], machine: Mapping[str, Any]) -> str | None:
    return None if all(value == machine["value"] for value in values) else f"each has to be {machine['value']}"


def _uniform(values: Sequence[Any], machine: Mapping[str, Any]) -> str | None:
    return None if len(set(values)) <= 1 else "all have to be the same"


def _range(value: float, machine: Mapping[str, Any]) -> str | None:
    bounds = (
        ("min", value >= machine.get("min", value), "at least"),
        ("max", value <= machine.get("max", value), "at most"),
        ("exclusive_min", "exclusive_min" not in machine or value > machine["exclusive_min"], "more than"),
        ("exclusive_max", "exclusive_max" not in machine or value < machine["exclusive_max"], "less than"),
    )
    return next((f"it has to be {words} {machine[name]}" for name, kept, words in bounds if not kept), None)


def _odd(value: int, machine: Mapping[str, Any]) -> str | None:
    return None if value % 2 else "it has to be odd"


def _not_matches(value: str, machine: Mapping[str, Any]) -> str | None:
    return "which has a form that is not taken" if re.search(machine["pattern"], value) else None


def _len_in(values: Sequence[Any], machine: Mapping[str, Any]) -> str | None:
    return None if len(values) in machine["lengths"] else f"a list of {listed(machine['lengths'])} is taken"


def _len_told(machine: Mapping[str, Any], node: NodeFacts) -> Outcome:
    """The length of a list; one that is left out follows from the shape of the weights or the input."""
    if machine["attr"] in node.attributes:
        return _checked(_len_in)(machine, node)
    kernel = given(node, 1) if node.op in _KERNEL_IS_INPUT_1 else None
    if machine["attr"] == "kernel_shape" and kernel is not None and kernel.rank is not None:
        wrong = _len_in([0] * (kernel.rank - 2), machine)
        told = f"attribute 'kernel_shape' is not given and {kernel.rank - 2} long by {label(1, kernel)}, {wrong}"
        return HOLDS if wrong is None else broken(told, f"{FIX}, or {_EXPORT}")
    return untold(f"attribute {machine['attr']!r} is not given: its length is unknown", _EXPORT)


def _absent(machine: Mapping[str, Any], node: NodeFacts) -> Outcome:
    there = [name for name in machine["attrs"] if name in node.attributes]
    if not there:
        return HOLDS
    return broken(f"attribute {there[0]!r} is given, which is not taken", f"{FIX}, or export the model without it")


def _symmetric_pads(machine: Mapping[str, Any], node: NodeFacts) -> Outcome:
    auto = effective(node, "auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        return untold(
            f"attribute 'auto_pad' is {auto}: the pads at begin and end may differ, and only equal ones are taken",
            "export the model with explicit pads",
        )
    return _checked(_halves_equal)(machine, node)


def _halves_equal(values: Sequence[Any], machine: Mapping[str, Any]) -> str | None:
    half = len(values) // 2
    return None if list(values[:half]) == list(values[half:]) else "begin and end have to be the same"


def _iota(machine: Mapping[str, Any], node: NodeFacts) -> Outcome:
    name = machine["attr"]
    needed = machine.get("when_input_present")
    if needed is not None and given(node, needed) is None:
        return HOLDS
    axes = node.attributes.get(name, MISSING)
    if isinstance(axes, _Missing):
        return HOLDS
    if axes is None:
        return untold(f"attribute {name!r} is that of the function around the node", f"{FIX} inlines functions")
    tensor = given(node, machine["input"])
    rank = None if tensor is None else tensor.rank
    length = len(axes) if rank is None else rank
    if [axis + length if axis < 0 else axis for axis in axes] != list(range(length)):
        return broken(f"attribute {name!r} is {axes}, only all axes in order are taken", f"{FIX}, or {_EXPORT}")
    if rank is None:
        return untold(f"attribute {name!r} has to name all axes, and the rank of the input is unknown", _EXPORT)
    return HOLDS


def _same_both_ways(machine: Mapping[str, Any], node: NodeFacts) -> Outcome:
    if effective(node, "direction", "forward") != "bidirectional":
        return HOLDS
    return _checked(_both_ways)(machine, node)


def _both_ways(values: Sequence[str], machine: Mapping[str, Any]) -> str | None:
    half = len(values) // 2
    return None if list(values[:half]) == list(values[half:]) else "both directions have to have the same"


ATTRIBUTE_CHECKS: dict[str, Callable[[Mapping[str, Any], NodeFacts], Outcome]] = {
    "attr_equals": _checked(_equals, defaults=True, needed=True),
    "attr_in": _checked(_is_in, defaults=True, needed=True),
    "attr_each_in": _checked(_each_in),
    "attr_each_in_ci": _checked(_each_in_ci),
    "attr_in_list_ci": _checked(_in_list_ci),
    "attr_all_equal": _checked(_all_equal),
    "attr_uniform": _checked(_uniform),
    "attr_absent": _absent,
    "attr_range": _checked(_range, defaults=True),
    "attr_odd": _checked(_odd, defaults=True),
    "attr_len_in": _len_told,
    "attr_symmetric_pads": _symmetric_pads,
    "attr_iota": _iota,
    "attr_not_matches": _checked(_not_matches),
    "bidirectional_activations_equal": _same_both_ways,
}
