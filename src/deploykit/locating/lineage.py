"""What the tensors of an ONNX graph are made of, in the order of computation."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import onnx_ir as ir

from deploykit import graph
from deploykit.graph.extraction import read_by
from deploykit.graph.scopes import scope_of
from deploykit.graph.shapes import set_dims

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """A node that computes with the model's inputs.

    inputs: tensors that it reads and other steps make. outputs: what it makes and somebody may read.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    scope: str | None


class Lineage:
    """The steps of a graph in order. Nodes that follow from constants alone, and the bodies of others, are none.

    steps: in order. maker: index of the step that makes a tensor, by its name. sizes: bytes by tensor where known.
    """

    def __init__(self, model: ir.Model) -> None:
        """model: with named nodes, and its shapes inferred for the sizes that it runs with."""
        self.steps: list[Step] = []
        self.maker: dict[str, int] = {}
        self.sizes: dict[str, int | None] = {}
        varying = {value for value in model.graph.inputs if not value.is_initializer()}
        for node in model.graph:
            read = read_by(node)
            # A generator of noise varies with nothing in front of it.
            if not any(value in varying for value in read) and (read or node.op_type == "Constant"):
                continue
            varying.update(node.outputs)
            inputs = tuple(value.name for value in read if value.name in self.maker and value.name)
            outputs = tuple(value.name for value in node.outputs if value.name)
            for value in node.outputs:
                if value.name:
                    self.maker[value.name] = len(self.steps)
                    self.sizes[value.name] = _bytes(value)
            self.steps.append(Step(node.name or node.op_type, node.op_type, inputs, outputs, scope_of(node)))

    def step(self, tensor: str) -> Step:
        """The step that makes a tensor."""
        return self.steps[self.maker[tensor]]

    def before(self, tensor: str) -> list[int]:
        """Indices of all steps that a tensor is made by, ascending; its own is the last."""
        found: set[int] = set()
        pending = [self.maker[tensor]]
        while pending:
            index = pending.pop()
            if index not in found:
                found.add(index)
                pending += [self.maker[name] for name in self.steps[index].inputs]
        return sorted(found)

    def nearest(self, tensor: str, among: Collection[str]) -> list[str]:
        """The closest tensors of a set that a tensor is made of, in order of computation.

        Behind one of them nothing is looked at; on ways without one, the model's inputs are all there is.
        """
        found: dict[str, None] = {}
        seen: set[str] = set()
        pending = list(self.step(tensor).inputs)
        while pending:
            name = pending.pop()
            if name in seen:
                continue
            seen.add(name)
            if name in among:
                found[name] = None
            else:
                pending += self.step(name).inputs
        return sorted(found, key=self.place)

    def between(self, tensor: str, parents: Iterable[str]) -> list[Step]:
        """The steps that make a tensor of others, in order; its own is the last."""
        ends = set(parents)
        found: set[int] = set()
        pending = [tensor]
        while pending:
            index = self.maker[pending.pop()]
            if index not in found:
                found.add(index)
                pending += [name for name in self.steps[index].inputs if name not in ends]
        return [self.steps[index] for index in sorted(found)]

    def after(self, tensor: str) -> Iterator[str]:
        """Tensors that a tensor has a part in, in order of computation."""
        reached = {tensor}
        for step in self.steps[self.maker[tensor] :]:
            if reached.intersection(step.inputs):
                reached.update(step.outputs)
                yield from step.outputs

    def place(self, tensor: str) -> tuple[int, int]:
        """Where a tensor stands in the order of computation."""
        index = self.maker[tensor]
        return index, self.steps[index].outputs.index(tensor)


def lineage_of(model: ir.Model, shapes: Mapping[str, tuple[int, ...]]) -> Lineage:
    """The lineage of a model run on inputs of these shapes; the model itself is left as it is."""
    work = graph.name_nodes(model.clone())
    for value in work.graph.inputs:
        shape = shapes.get(value.name or "")
        value.shape = value.shape if shape is None else ir.Shape(shape)
    return Lineage(graph.infer_shapes(set_dims(work, {})))


def _bytes(value: ir.Value) -> int | None:
    if value.shape is None or value.dtype is None or value.dtype.name in ("STRING", "UNDEFINED"):
        return None
    sizes = [size for size in value.shape if isinstance(size, int)]
    return math.ceil(math.prod(sizes) * value.dtype.bitwidth / 8) if len(sizes) == len(value.shape) else None
