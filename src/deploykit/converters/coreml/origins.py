"""Which ONNX node each operation of a program comes from, told by names that survive coremltools' passes.

The variable that carries an ONNX tensor is named after it (`tensor_name`); what a lowering computes on the way gets
that name with two underscores and the operator behind it. A fused operation keeps the name of its last part.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from deploykit.converters.coreml.lowering.node import Node

# coremltools adds these to what its passes make out of a variable.
_ADDED = re.compile(r"(_cast_fp16|_to_fp16|_to_fp32|_affine_dequantized|_0)+$")
_BETWEEN = "__"


def tensor_name(name: str) -> str:
    """The name that a variable has in the program for the ONNX tensor that it carries, where no other has taken it."""
    made = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return f"_{made}" if not made or made[0].isdigit() else made


class Origins:
    """Names operations while they are lowered, and finds the ONNX node of an operation afterwards."""

    def __init__(self, names: Mapping[str, str]) -> None:
        """names: the Core ML name by ONNX name of inputs and outputs, which nothing else may take."""
        self._doors = dict(names)
        self._taken = set(names.values())
        self._nodes: dict[str, tuple[str, str]] = {}
        self.tensors: dict[str, str] = {}  # ONNX tensor by variable, where the variable could not be named after it

    def name(self, node: Node, made: Sequence[Any], operations: Iterable[Any]) -> None:
        """Names what one node became. made: its result variables. operations: all that its lowering added."""
        told = (node.name, node.op)
        results = {id(v): value.name for v, value in zip(made, node.raw.outputs, strict=False) if v is not None}
        first = next((value.name for value in node.raw.outputs if value.name), None) or node.name or node.op
        for value in node.raw.outputs:
            if value.name in self._doors:
                self._nodes[self._doors[value.name]] = told
        for operation in _inner(operations):
            if operation.op_type == "const":
                continue
            for place, variable in enumerate(operation.outputs):
                tensor = results.get(id(variable))
                # A function's output has its name from the identity that makes it.
                own = tensor is not None and tensor not in self._doors
                variable.name = self._free(tensor_name(tensor or "") if own else _within(first, operation.op_type))
                if own and variable.name != tensor_name(tensor or ""):
                    self.tensors[variable.name] = tensor or ""
                self._nodes[variable.name] = told
                if place == 0:
                    operation.name = variable.name

    def _free(self, wanted: str) -> str:
        name, number = wanted, 1
        while name in self._taken:
            name = f"{wanted}_{number}"
            number += 1
        self._taken.add(name)
        return name

    def of(self, operation: Any) -> tuple[str, str] | None:
        """Name and type of the ONNX node; of an operation that a pass has made, the node of what reads it."""
        seen: set[int] = set()
        waiting = [operation]
        while waiting:
            found = waiting.pop(0)
            if id(found) in seen:
                continue
            seen.add(id(found))
            for name in (*(variable.name for variable in found.outputs), found.name):
                told = self._nodes.get(name) or self._nodes.get(_ADDED.sub("", name or ""))
                if told is not None:
                    return told
            waiting += [reader for variable in found.outputs for reader in variable.child_ops]
        return None


def _within(tensor: str, operator: str) -> str:
    return f"{tensor_name(tensor)}{_BETWEEN}{operator}"


def _inner(operations: Iterable[Any]) -> Iterator[Any]:
    for operation in operations:
        yield operation
        for block in operation.blocks:
            yield from _inner(block.operations)


def added(block: Any, last: Any) -> list[Any]:
    """The operations of a block behind the one that was its last (None: all of them)."""
    found = []
    place = block.operations.start if last is None else last.next
    while place is not None:
        found.append(place.op)
        place = place.next
    return found
