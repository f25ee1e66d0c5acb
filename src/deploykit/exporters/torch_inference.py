"""Inputs of a TorchScript file, read off the operators that take them: files keep no shapes of their inputs."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch

from deploykit.artifact import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

# What leaves dtype and rank as they are, on the way to an operator that tells.
_PASSING = {"aten::to", "aten::contiguous", "aten::relu", "aten::mul", "aten::add", "aten::sub", "aten::div"}
_CONVOLUTIONS = {"aten::conv1d": 1, "aten::conv2d": 2, "aten::conv3d": 3}
# Sizes of images and signals, in the order in which they are tried, where a convolution leaves them open.
_SIDES = (224, 32, 28, 64, 8, 16, 96, 128, 256, 160, 192, 299, 320, 384, 416, 448, 512, 640, 1024)


def input_specs(module: torch.jit.ScriptModule) -> tuple[TensorSpec, ...]:
    """The inputs with names for their open sizes; empty when an operator does not tell one of them.

    Sizes that the module does not leave free, as before a flattening, are the first of `_SIDES` that it takes.
    """
    graph = module.forward.graph.copy()
    torch._C._jit_pass_inline(graph)
    constants = _Constants(module)
    found = []
    for value in list(graph.inputs())[1:]:
        if value.type().kind() != "TensorType":
            continue
        shape = next((told for use in _uses(value) if (told := _told(use, constants)) is not None), None)
        if shape is None:
            return ()
        dtype, sizes = shape
        name = value.debugName().partition(".")[0]
        found.append(TensorSpec(name, dtype, tuple(size or f"{name}_{at}" for at, size in enumerate(sizes))))
    specs = [TensorSpec(s.name, s.dtype, ("batch", *(s.shape or ())[1:])) for s in found]
    return tuple(_tried(module, specs))


class _Constants:
    """Values of a graph that are parameters of the module, by the chain of attributes that reads them."""

    def __init__(self, module: torch.jit.ScriptModule) -> None:
        self._module = module

    def shape(self, value: Any) -> tuple[int, ...] | None:
        found = self.value(value)
        return tuple(found.shape) if isinstance(found, torch.Tensor) else None

    def value(self, value: Any) -> Any:
        node = value.node()
        if node.kind() == "prim::Constant":
            return value.toIValue()
        names = []
        while node.kind() == "prim::GetAttr":
            names.append(node.s("name"))
            (owner,) = node.inputs()
            node = owner.node()
        found: Any = self._module
        for name in reversed(names):
            found = getattr(found, name, None)
        return found if names else None


def _uses(value: Any, depth: int = 8) -> Iterator[Any]:
    """Each operator that takes the value, through those that leave it as it is."""
    for use in value.uses():
        kind = use.user.kind()
        yield use
        if kind in _PASSING and depth and use.offset == 0:
            for output in use.user.outputs():
                yield from _uses(output, depth - 1)


def _told(use: Any, constants: _Constants) -> tuple[str, list[int | None]] | None:
    """Dtype and sizes (None: open) of the value, by an operator that takes it first."""
    node, at = use.user, use.offset
    inputs = list(node.inputs())
    kind = node.kind()
    if kind == "aten::embedding" and at == 1:
        return "int64", [None, None]
    if at != 0 or len(inputs) < 2:
        return None
    weight = constants.shape(inputs[1])
    if kind in _CONVOLUTIONS and weight:
        groups = constants.value(inputs[6]) if len(inputs) > 6 else 1
        return "float32", [None, weight[1] * int(groups or 1), *[None] * _CONVOLUTIONS[kind]]
    if kind == "aten::_convolution" and weight:
        return "float32", [None, weight[1] * int(constants.value(inputs[8]) or 1), *[None] * (len(weight) - 2)]
    if kind == "aten::linear" and weight:
        return "float32", [None, weight[1]]
    if kind in ("aten::lstm", "aten::gru"):
        return _recurrent(node, constants)
    return None


def _recurrent(node: Any, constants: _Constants) -> tuple[str, list[int | None]] | None:
    weights = next((v for v in node.inputs() if v.type().kind() == "ListType" and v.node().inputsSize() > 2), None)
    shape = constants.shape(next(iter(weights.node().inputs()))) if weights is not None else None
    batch_first = constants.value(list(node.inputs())[-1])
    return ("float32", [None, None, shape[1]]) if shape and batch_first else None


def _tried(module: torch.jit.ScriptModule, specs: list[TensorSpec]) -> Iterator[TensorSpec]:
    """The specs, with a number for open sizes where the module does not take two different ones."""
    if all(_runs(module, specs, sides) for sides in ((33, 47), (64, 40))):
        return iter(specs)
    for side in _SIDES:
        if _runs(module, specs, (side, side)):
            return (
                TensorSpec(
                    s.name,
                    s.dtype,
                    tuple(side if at > 1 and isinstance(d, str) else d for at, d in enumerate(s.shape or ())),
                )
                for s in specs
            )
    return iter(())


def _with_sides(shape: tuple[int | str, ...], side: int) -> tuple[int | str, ...]:
    """The shape with the number for what is open behind the batch and the channels."""
    return tuple(side if at > 1 and isinstance(dim, str) else dim for at, dim in enumerate(shape))


def _runs(module: torch.jit.ScriptModule, specs: list[TensorSpec], sides: tuple[int, int]) -> bool:
    tensors = []
    for spec in specs:
        sizes = itertools.cycle(sides)
        shape = [2 if at == 0 else next(sizes) if isinstance(d, str) else d for at, d in enumerate(spec.shape or ())]
        tensors.append(torch.zeros(shape, dtype=getattr(torch, spec.dtype)))
    try:
        with torch.no_grad():
            module(*tensors)
    except Exception:  # a size that the module does not take
        return False
    return True
