"""Views, permutations and repetitions of tensors of any rank, built of MIL operations on at most five dimensions."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var

from deploykit.converters.coreml.lowering.context import Refused, constant, size_of
from deploykit.converters.coreml.lowering.shape import as_shape
from deploykit.converters.coreml.ranks import MOST, Size, Varying, Wide, grouped, same, transposition
from deploykit.graph.signature import constant_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

    from deploykit.converters.coreml.lowering.context import Environment

_FIX = "fix the size: deploykit simplify MODEL --dim NAME=VALUE"


def declared_size(value: ir.Value, axis: int) -> int | str | None:
    """A size as the graph declares it: a number, a symbol, or nothing."""
    if value.shape is None or axis >= len(value.shape):
        return None
    size = value.shape[axis]
    return size if isinstance(size, int) else size.value


def size_from(made: Any, declared: int | str | None) -> Size:
    """One size from what the graph declares, or from a number or scalar variable."""
    if isinstance(declared, int):
        return declared
    if isinstance(made, (int, np.integer)):
        return int(made)
    return Varying(made, declared if declared not in ("", "?") else None)


def wide(value: ir.Value, environment: Environment) -> Wide:
    """A value as a tensor of any rank."""
    held = environment.held(value)
    if isinstance(held, Wide):
        return held
    if held is None:
        tensor = constant_of(value)
        if tensor is not None and len(tensor.shape) > MOST:
            array = np.asarray(tensor.numpy())
            return Wide(constant(array.reshape(-1)), array.shape)
    variable = environment.variable(value)
    sizes = []
    for axis, size in enumerate(variable.shape):
        if isinstance(size, (int, np.integer)):
            sizes.append(size_from(int(size), None))
        else:
            sizes.append(size_from(size_of(variable, axis), declared_size(value, axis)))
    return Wide(variable, tuple(sizes))


def product(sizes: Sequence[Size]) -> Any:
    """The number of elements: a number, or a scalar variable where a size varies."""
    number = math.prod(size for size in sizes if isinstance(size, int))
    found: Any = None
    for size in sizes:
        if isinstance(size, Varying):
            found = size.variable if found is None else mb.mul(x=found, y=size.variable)
    if found is None:
        return number
    return found if number == 1 else mb.mul(x=found, y=np.int32(number))


def view(tensor: Wide, groups: Sequence[Sequence[int]]) -> Var:
    """The elements in a shape of one size for each group of neighbouring axes."""
    return shaped(tensor.variable, [[tensor.sizes[axis] for axis in group] for group in groups])


def shaped(variable: Var, groups: Sequence[Sequence[Size]]) -> Var:
    """The elements in a shape whose sizes are the products of the groups'; one that varies follows from the rest."""
    varies = [sum(isinstance(size, Varying) for size in group) for group in groups]
    if not any(varies):
        sizes = [product(group) for group in groups]
        if tuple(variable.shape) == tuple(sizes):
            return variable
        return mb.reshape(x=variable, shape=sizes) if sizes else mb.squeeze(x=variable)
    rest = varies.index(max(varies))
    return mb.reshape(
        x=variable, shape=as_shape([-1 if place == rest else product(group) for place, group in enumerate(groups)])
    )


def narrow(tensor: Wide) -> Var | Wide:
    """A variable where the rank is one that Core ML has."""
    return tensor if tensor.rank > MOST else shaped(tensor.variable, [[size] for size in tensor.sizes])


def around(tensor: Wide, axis: int) -> Var:
    """Three dimensions: what is before the axis, the axis, what is behind it."""
    return view(tensor, [list(range(axis)), [axis], list(range(axis + 1, tensor.rank))])


def permuted(tensor: Wide, permutation: Sequence[int]) -> Wide:
    """The axes in another order, by transposes of at most five blocks of axes each."""
    sizes = tuple(tensor.sizes[axis] for axis in permutation)
    moving = [axis for axis in permutation if tensor.sizes[axis] != 1]
    numbers = {axis: place for place, axis in enumerate(sorted(moving))}
    axes = sorted(moving)
    variable = tensor.variable
    for step in transposition(tuple(numbers[axis] for axis in moving)) if moving else ():
        blocks = [[tensor.sizes[axes[place]] for place in block] for block in step.blocks]
        variable = mb.transpose(x=shaped(variable, blocks), perm=list(step.order))
    return Wide(variable, sizes)


def broadcast(shapes: Sequence[Sequence[Size]]) -> tuple[Size, ...]:
    """The shape that all take when they are broadcast to each other. Refused where sizes that vary may differ."""
    rank = max(map(len, shapes))
    found = []
    padded: list[list[Size]] = [[*([1] * (rank - len(shape))), *shape] for shape in shapes]
    for sizes in zip(*padded, strict=True):
        larger = [size for size in sizes if size != 1]
        if any(not same(larger[0], size) for size in larger[1:]):
            raise Refused("it broadcasts sizes that vary and are not known to be equal", _FIX)
        # A number tells more than a size that is equal to it.
        found.append(larger[0] if larger else 1)
    return tuple(found)


def expanded(tensor: Wide, sizes: Sequence[Size]) -> Wide:
    """Repeated along the axes of size 1 up to the sizes that are wanted, which have at least its rank."""
    have: list[Size] = [*([1] * (len(sizes) - tensor.rank)), *tensor.sizes]
    wider = [a == 1 and b != 1 for a, b in zip(have, sizes, strict=True)]
    if not any(wider):
        return Wide(tensor.variable, tuple(sizes))
    groups = grouped([None if size == 1 else wide for wide, size in zip(wider, sizes, strict=True)])
    variable = tensor.variable
    if len(groups) <= MOST:
        parts: list[list[Size]] = [[1] if repeat else [sizes[axis] for axis in axes] for repeat, axes in groups]
        repeats = [product([sizes[axis] for axis in axes]) if repeat else 1 for repeat, axes in groups]
        return Wide(mb.tile(x=shaped(variable, parts), reps=as_shape(repeats)), tuple(sizes))
    for repeat, axes in groups:
        if repeat:
            times = product([sizes[axis] for axis in axes])
            parts = [have[: axes[0]], [1], have[axes[-1] + 1 :]]
            variable = mb.tile(x=shaped(variable, parts), reps=as_shape([1, times, 1]))
            have[axes[0] : axes[-1] + 1] = [sizes[axis] for axis in axes]
    return Wide(variable, tuple(sizes))


def views_together(tensors: Sequence[Wide]) -> tuple[list[Var], tuple[Size, ...]]:
    """Views of at most five dimensions that broadcast to each other as the tensors do, and the sizes of the result.

    Axes on which the same tensors are broadcast go together. Where more than five are left, tensors that are broadcast
    are repeated first, as few as possible.
    """
    sizes = broadcast([tensor.sizes for tensor in tensors])
    aligned = [Wide(t.variable, (*([1] * (len(sizes) - t.rank)), *t.sizes)) for t in tensors]
    for chosen in itertools.chain.from_iterable(
        itertools.combinations(range(len(tensors)), count) for count in range(len(tensors) + 1)
    ):
        full = [[place in chosen or size != 1 for size in tensor.sizes] for place, tensor in enumerate(aligned)]
        marks = [
            None if sizes[axis] == 1 else tuple(full[place][axis] for place in range(len(tensors)))
            for axis in range(len(sizes))
        ]
        groups = grouped(marks)
        if len(groups) <= MOST:
            break
    made = []
    for place, tensor in enumerate(aligned):
        whole = expanded(tensor, sizes) if place in chosen else tensor
        parts: list[list[Size]] = [
            [sizes[axis] for axis in axes] if mark is None or mark[place] else [1] for mark, axes in groups
        ]
        made.append(shaped(whole.variable, parts))
    return made, sizes
