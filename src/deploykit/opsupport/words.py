"""Conditions that the sources have in words only.

Most of those that stand for every operator of a table have nothing to do with most nodes, and some of those of one
operator can be read (`readings`). The others cannot be told from the graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deploykit.opsupport.outcome import FIX, HOLDS, Outcome, broken, label, untold
from deploykit.opsupport.readings import READINGS
from deploykit.opsupport.tensor_checks import table_dtype, to_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from deploykit.opsupport.facts import NodeFacts, TensorFacts

_CONVERT = "convert the model on the target to find out"


def words_only(condition: Mapping[str, Any], node: NodeFacts) -> Outcome:
    """What can be told of a condition without a check: by default, its words."""
    subject, rule = condition["subject"], condition["rule"]
    everywhere = _READ.get((subject, rule))
    if everywhere is not None:
        return everywhere(condition, node)
    reading = READINGS.get((node.op, subject, rule))
    told = None if reading is None else reading(node)
    if isinstance(told, str):
        return broken(f"{told} ({subject}: {rule})", f"{FIX}, or change it where the model is made")
    return HOLDS if told else _in_words(condition)


def _in_words(condition: Mapping[str, Any], about: str = "") -> Outcome:
    return untold(f"{about or condition['subject']}: {condition['rule']}", _CONVERT)


def _tensors(node: NodeFacts) -> Iterator[tuple[str, TensorFacts]]:
    yield from ((label(at, tensor), tensor) for at, tensor in enumerate(node.inputs) if tensor is not None)
    yield from ((label(at, tensor, "output"), tensor) for at, tensor in enumerate(node.outputs) if tensor is not None)


def _narrowed(condition: Mapping[str, Any], node: NodeFacts) -> Outcome:
    """A type that is taken and computed in a narrower one: constants whose values fit are the same in both."""
    wide = condition["subject"]
    for _, tensor in _tensors(node):
        if table_dtype(tensor.dtype) != wide or _fits(tensor, wide):
            continue
        return _in_words(condition)
    return HOLDS


def _fits(tensor: TensorFacts, wide: str) -> bool:
    value = tensor.value
    if value is None or wide != "int64":  # float32 rounds most values of float64
        return False
    return not value.size or bool(value.min() >= -(2**31) and value.max() < 2**31)


def _cast_only(condition: Mapping[str, Any], node: NodeFacts) -> Outcome:
    if node.op == "Cast":
        return HOLDS
    return _never_of(condition, node, {"uint8"})


def _through_qdq(condition: Mapping[str, Any], node: NodeFacts) -> Outcome:
    if node.op in ("QuantizeLinear", "DequantizeLinear", "Constant"):
        return HOLDS
    return _never_of(condition, node, {"int8", "int4", "float8e4m3fn", "float4e2m1"})


def _never_of(condition: Mapping[str, Any], node: NodeFacts, dtypes: set[str]) -> Outcome:
    for place, tensor in _tensors(node):
        dtype = table_dtype(tensor.dtype)
        if dtype in dtypes:
            return broken(f"{place} is {dtype}, {condition['rule']}", to_dtype(dtype or ""))
    return HOLDS


def _no_elements(condition: Mapping[str, Any], node: NodeFacts) -> Outcome:
    for at, tensor in enumerate(node.inputs):
        if tensor is not None and tensor.shape is not None and 0 in tensor.shape:
            return broken(f"{label(at, tensor)} has no elements, which is not taken", f"{FIX}, or export without it")
    return HOLDS


def _static_in_practice(condition: Mapping[str, Any], node: NodeFacts) -> Outcome:
    for tensor in node.inputs:
        if tensor is not None and (tensor.shape is None or not all(isinstance(dim, int) for dim in tensor.shape)):
            return _in_words(condition)
    return HOLDS


def _float32_first(condition: Mapping[str, Any], node: NodeFacts) -> Outcome:
    first = node.inputs[0] if node.inputs else None
    if first is None or first.dtype in ("float32", "uint8", "int8"):
        return HOLDS
    return _in_words(condition, f"first input, of {first.dtype}")


def _half_for_float(condition: Mapping[str, Any], node: NodeFacts) -> Outcome:
    return _in_words(condition) if any(tensor.dtype == "float32" for _, tensor in _tensors(node)) else HOLDS


def _no_bodies(condition: Mapping[str, Any], node: NodeFacts) -> Outcome:
    if node.op not in ("If", "Loop", "Scan"):
        return HOLDS
    return broken(f"{node.op} is not taken", f"{FIX} removes the branch where its condition is a constant")


# By subject and rule, as the tables have them.
_READ: dict[tuple[str, str], Callable[[Mapping[str, Any], NodeFacts], Outcome]] = {
    ("float64", "narrowed to float32, values clamped"): _narrowed,
    ("int64", "narrowed to int32, values clamped"): _narrowed,
    ("uint8", "allowed on network inputs/outputs and as Cast operand only"): _cast_only,
    ("int8,int4,float8,float4", "only through QuantizeLinear/DequantizeLinear"): _through_qdq,
    ("any input", "no zero-element tensors"): _no_elements,
    ("any input", "static shapes in practice"): _static_in_practice,
    ("first input", "float32 unless quantised or noted"): _float32_first,
    ("tensors", "HTP wants 8/16-bit quantised or float16; float32 is run as float16 by default"): _half_for_float,
    ("control flow", "If, Loop, Scan not taken"): _no_bodies,
}
