"""Shapes as constants where they are known, and computed at run time where they are not."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from deploykit.optimizers.rewrites.emitting import size_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

    from deploykit.optimizers.rewrites.emitting import Emitter


class UnknownSizeError(Exception):
    """A shape cannot be written: builders decline."""


@dataclasses.dataclass(frozen=True)
class Product:
    """A size that is the product of sizes of dimensions, times or divided by a number, once those are known.

    dims: (value, axis) of each, the value None when nothing is left to ask for it; times: the known part; over: what
    the product is divided by, without a rest.
    """

    dims: tuple[tuple[ir.Value | None, int], ...] = ()
    times: int = 1
    over: int = 1

    @property
    def known(self) -> int | None:
        """The size, when it does not depend on the run."""
        return None if self.dims else self.times // self.over


def dim(value: ir.Value, axis: int, times: int = 1, over: int = 1) -> Product:
    """The size of one dimension, which may be symbolic."""
    size = size_of(value, axis)
    return Product(((value, axis),), times, over) if size is None else Product((), size * times, over)


def product(parts: Sequence[Product]) -> Product:
    """The size of dimensions that are merged."""
    dims: tuple[tuple[ir.Value | None, int], ...] = ()
    times = over = 1
    for part in parts:
        dims, times, over = dims + part.dims, times * part.times, over * part.over
    return Product(dims, times, over)


def reshape_to(op: Emitter, value: ir.Value, parts: Sequence[Product | int], kept: int = 0) -> ir.Value:
    """Reshapes to these sizes; a constant shape where at most one is unknown and moves.

    kept: how many of the first dimensions are those of the value. Raises UnknownSizeError.
    """
    sizes = [part if isinstance(part, int) else part.known for part in parts]
    constant: list[int] = []
    free = 0
    for at, size in enumerate(sizes):
        # 0 copies the dimension at the same place, so a size that is really 0 cannot be written.
        if size is not None and size != 0:
            constant.append(size)
        elif at < kept:
            constant.append(0)
        else:
            constant.append(-1)
            free += 1
    if free <= 1 and 0 not in sizes:
        return op.reshape(value, constant)
    pieces = [op.ints([part]) if isinstance(part, int) else _computed(op, part) for part in parts]
    return op.op("Reshape", value, op.op("Concat", *pieces, axis=0) if len(pieces) > 1 else pieces[0])


def _computed(op: Emitter, part: Product) -> ir.Value:
    known = part.known
    if known is not None:
        return op.ints([known])
    size: ir.Value | None = None
    for value, axis in part.dims:
        if value is None:
            raise UnknownSizeError("nothing tells the size of a dimension")
        one = op.op("Gather", op.op("Shape", value), op.ints([axis]), axis=0)
        size = one if size is None else op.op("Mul", size, one)
    if size is None:
        raise ValueError("a size of no dimensions is known")
    if part.times != 1:
        size = op.op("Mul", size, op.ints([part.times]))
    return size if part.over == 1 else op.op("Div", size, op.ints([part.over]))


def reshape_back(op: Emitter, value: ir.Value, like: ir.Value) -> ir.Value:
    """To the shape of another value, whose rank is known."""
    if like.shape is None:
        return op.op("Reshape", value, op.op("Shape", like))
    sizes = [size_of(like, axis) for axis in range(len(like.shape))]
    if sizes.count(None) > 1 or 0 in sizes:
        return op.op("Reshape", value, op.op("Shape", like))
    return op.reshape(value, [-1 if size is None else size for size in sizes])
