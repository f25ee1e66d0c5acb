"""Permutations of many dimensions by transposes of few: dimensions that stay neighbours move as one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deploykit.optimizers.rewrites.shaping import product, reshape_to

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

    from deploykit.optimizers.rewrites.emitting import Emitter
    from deploykit.optimizers.rewrites.shaping import Product

LARGEST_RANK = 5  # what Core ML takes; TensorRT takes 8


def merged(order: Sequence[int], limit: int = LARGEST_RANK) -> list[tuple[list[list[int]], list[int]]]:
    """The transposes that bring dimensions 0..n-1 into this order: for each, groups of dimensions and their new order.

    The groups of a step are the dimensions (by their first number) that it sees as one, as they stand before it.
    One step where the groups are few enough; otherwise each step swaps two neighbouring blocks.
    """
    groups = _runs(order)
    if len(groups) <= limit:
        standing = sorted(groups)
        return [] if groups == standing else [(standing, [standing.index(group) for group in groups])]
    steps: list[tuple[list[list[int]], list[int]]] = []
    current = list(range(len(order)))
    for at in range(len(order)):
        place = current.index(order[at])
        if place == at:
            continue
        length = 1
        while place + length < len(current) and current[place + length] == order[at + length]:
            length += 1
        blocks = [current[:at], current[at:place], current[place : place + length], current[place + length :]]
        seen = [block for block in blocks if block]
        first = 1 if blocks[0] else 0
        swapped = list(range(len(seen)))
        swapped[first], swapped[first + 1] = swapped[first + 1], swapped[first]
        steps.append((seen, swapped))
        current = blocks[0] + blocks[2] + blocks[1] + blocks[3]
    return steps


def _runs(order: Sequence[int]) -> list[list[int]]:
    """Neighbours that stay neighbours: [0, 3, 4, 1] is [0], [3, 4], [1]."""
    runs: list[list[int]] = []
    for axis in order:
        if runs and runs[-1][-1] + 1 == axis:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    return runs


def permute(
    op: Emitter, value: ir.Value, sizes: Sequence[Product], order: Sequence[int], limit: int = LARGEST_RANK
) -> ir.Value:
    """What `Reshape to sizes, Transpose by order` gives, in some shape: the caller reshapes it to its own.

    Dimensions of size 1 are left out. Raises UnknownSizeError where a shape depends on what nothing tells.
    """
    moving = [axis for axis in range(len(sizes)) if sizes[axis].known != 1]
    place = {axis: at for at, axis in enumerate(moving)}
    for groups, swapped in merged([place[axis] for axis in order if axis in place], limit):
        shape = [product([sizes[moving[at]] for at in group]) for group in groups]
        value = op.transpose(reshape_to(op, value, shape), swapped)
    return value
