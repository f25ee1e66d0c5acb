"""Einsum as transposes, products and sums, for any equation whose ranks are known."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from deploykit.optimizers.editing import rank_of
from deploykit.optimizers.rewrites.decomposition import Decomposition
from deploykit.optimizers.rewrites.emitting import size_of
from deploykit.optimizers.rewrites.shaping import Product, dim, product, reshape_to

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx_ir as ir

    from deploykit.optimizers.rewrites.decomposition import Builder
    from deploykit.optimizers.rewrites.emitting import Emitter

_ELLIPSIS = "..."


@dataclasses.dataclass
class _Term:
    """An operand: its value, and the label of each of its dimensions."""

    value: ir.Value
    labels: list[str]


def einsum(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """Sums what each operand has alone, then multiplies pairwise from the left: MatMul where a label is summed.

    An ellipsis stands for as many labels of its own as the rank leaves; a repeated label is a diagonal. A dimension of
    size 1 under a label that is larger elsewhere is broadcast: it is dropped from its operand.
    """
    operands = [value for value in node.inputs if value is not None]
    if len(operands) != len(node.inputs) or any(rank_of(value) is None for value in operands):
        return None
    parsed = parse(node.attributes.get_string("equation", ""), [rank_of(value) or 0 for value in operands])
    if parsed is None:
        return None
    inputs, output = parsed
    sizes = _sizes(operands, inputs)
    if sizes is None or any(label not in sizes for label in output):
        return None
    terms = []
    for value, labels in zip(operands, inputs, strict=True):
        term = _Term(value, list(labels))
        if not _take_diagonals(op, term, sizes):
            return None
        _drop_broadcast(op, term, value, labels, sizes)
        terms.append(term)
    for at, term in enumerate(terms):
        others = {label for number, other in enumerate(terms) if number != at for label in other.labels}
        _sum_out(op, term, [label for label in term.labels if label not in others and label not in output])
    result = terms[0]
    for at, term in enumerate(terms[1:], start=1):
        kept = set(output) | {label for other in terms[at + 1 :] for label in other.labels}
        result = _multiply(op, result, term, kept, sizes)
    _sum_out(op, result, [label for label in result.labels if label not in output])
    missing = [label for label in output if label not in result.labels]
    if missing:  # a label that is broadcast everywhere has been dropped
        return None
    return [op.transpose(result.value, [result.labels.index(label) for label in output])]


def parse(equation: str, ranks: Sequence[int]) -> tuple[list[list[str]], list[str]] | None:
    """The labels of each operand and of the result, with ellipses written out; None for an equation that does not fit.

    Without an arrow the result has the ellipsis first, and then the labels that occur once, in order (numpy.einsum).
    """
    left, arrow, right = "".join(equation.split()).partition("->")
    written = left.split(",")
    if len(written) != len(ranks):
        return None
    inputs: list[list[str]] = []
    longest = 0
    for text, rank in zip(written, ranks, strict=True):
        before, dots, after = text.partition(_ELLIPSIS)
        if not (before + after).replace(".", "x").isalpha() and before + after:
            return None
        more = rank - len(before) - len(after)
        if more < 0 or (more and not dots):
            return None
        longest = max(longest, more)
        inputs.append([*before, *(f"{_ELLIPSIS}{at}" for at in range(more, 0, -1)), *after])
    spread = [f"{_ELLIPSIS}{at}" for at in range(longest, 0, -1)]
    every = [label for labels in inputs for label in labels]
    if not arrow:
        once = sorted(label for label in set(every) if every.count(label) == 1 and not label.startswith(_ELLIPSIS))
        return inputs, spread + once
    before, dots, after = right.partition(_ELLIPSIS)
    output = [*before, *(spread if dots else []), *after]
    if len(set(output)) != len(output) or not set(output) <= set(every):
        return None
    return inputs, output


def _sizes(operands: Sequence[ir.Value], inputs: Sequence[Sequence[str]]) -> dict[str, Product] | None:
    """The size of each label, from the operand that tells most; None where they may be broadcast or differ."""
    found: dict[str, Product] = {}
    for value, labels in zip(operands, inputs, strict=True):
        for at, label in enumerate(labels):
            size, seen = dim(value, at), found.get(label)
            if seen is None or seen.known == 1 or (seen.known is None and size.known not in (None, 1)):
                found[label] = size
            elif None not in (seen.known, size.known) and size.known not in (seen.known, 1):
                return None
    for value, labels in zip(operands, inputs, strict=True):
        for at, label in enumerate(labels):
            # Whether a dimension without a known size is broadcast shows at run time only.
            if label.startswith(_ELLIPSIS) and size_of(value, at) is None and not _same(value, at, found[label]):
                return None
    return found


def _same(value: ir.Value, axis: int, size: Product) -> bool:
    if value.shape is None or not size.dims or size.dims[0][0] is None:
        return False
    other, at = size.dims[0]
    return other is not None and other.shape is not None and value.shape[axis] == other.shape[at]


def _take_diagonals(op: Emitter, term: _Term, sizes: Mapping[str, Product]) -> bool:
    """Sums what a mask leaves of dimensions with one label; False where their size is not known."""
    for label in dict.fromkeys(term.labels):
        while term.labels.count(label) > 1:
            first = term.labels.index(label)
            second = term.labels.index(label, first + 1)
            length = sizes[label].known
            if length is None or term.value.dtype is None:
                return False
            shape = [length if at in (first, second) else 1 for at in range(len(term.labels))]
            mask = op.const(np.eye(length, dtype=np.bool_).reshape(shape))
            masked = op.op("Where", mask, term.value, op.like(0, term.value))
            masked.type = term.value.type
            term.value = op.reduce("ReduceSum", masked, [second], keepdims=0)
            del term.labels[second]
    return True


def _drop_broadcast(
    op: Emitter, term: _Term, value: ir.Value, labels: Sequence[str], sizes: Mapping[str, Product]
) -> None:
    ones = {label for at, label in enumerate(labels) if size_of(value, at) == 1 and sizes[label].known != 1}
    axes = [at for at, label in enumerate(term.labels) if label in ones]
    term.value = op.squeeze(term.value, axes)
    term.labels = [label for label in term.labels if label not in ones]


def _sum_out(op: Emitter, term: _Term, labels: Sequence[str]) -> None:
    if labels:
        term.value = op.reduce("ReduceSum", term.value, [term.labels.index(label) for label in labels], keepdims=0)
        term.labels = [label for label in term.labels if label not in labels]


def _multiply(op: Emitter, a: _Term, b: _Term, kept: set[str], sizes: Mapping[str, Product]) -> _Term:
    batch = [label for label in a.labels if label in b.labels and label in kept]
    summed = [label for label in a.labels if label in b.labels and label not in kept]
    left = [label for label in a.labels if label not in b.labels]
    right = [label for label in b.labels if label not in a.labels]
    if not summed:
        order = batch + left + right
        return _Term(op.op("Mul", _aligned(op, a, order), _aligned(op, b, order)), order)
    first = _matrix(op, a, batch, left, summed, sizes)
    second = _matrix(op, b, batch, summed, right, sizes)
    result = op.op("MatMul", first, second)
    if len(left) == 1 and len(right) == 1:
        return _Term(result, batch + left + right)
    # One side may have no labels of its own: its dimension of size 1 goes; several come apart again.
    if len(left) <= 1 and len(right) <= 1:
        axes = [len(batch) + at for at, labels in enumerate((left, right)) if not labels]
        return _Term(op.squeeze(result, axes), batch + left + right)
    order = batch + left + right
    return _Term(reshape_to(op, result, [sizes[label] for label in order], kept=len(batch)), order)


def _aligned(op: Emitter, term: _Term, order: Sequence[str]) -> ir.Value:
    """With its dimensions in this order, and of size 1 where it has none: those in front are left out."""
    present = [label for label in order if label in term.labels]
    value = op.transpose(term.value, [term.labels.index(label) for label in present])
    if not present:
        return value
    start = order.index(present[0])
    return op.unsqueeze(value, [at - start for at, label in enumerate(order) if at > start and label not in present])


def _matrix(
    op: Emitter,
    term: _Term,
    batch: Sequence[str],
    rows: Sequence[str],
    columns: Sequence[str],
    sizes: Mapping[str, Product],
) -> ir.Value:
    """As [batch..., rows, columns], several labels merged into one dimension, none as one of size 1."""
    order = [*batch, *rows, *columns]
    value = op.transpose(term.value, [term.labels.index(label) for label in order])
    if len(rows) > 1 or len(columns) > 1:
        parts = [product([sizes[label] for label in labels]) for labels in (rows, columns)]
        return reshape_to(op, value, [*(sizes[label] for label in batch), *parts], kept=len(batch))
    return op.unsqueeze(value, [len(batch) + at for at, labels in enumerate((rows, columns)) if not labels])


class DecomposeEinsum(Decomposition):
    """Einsum with any number of operands, explicit or implicit results, ellipses, diagonals, dynamic dimensions."""

    name: ClassVar[str] = "decompose-einsum"
    title: ClassVar[str] = "writes Einsum as Transpose, Reshape, MatMul, Mul and ReduceSum"
    builders: ClassVar[Mapping[tuple[str, str], Builder]] = {("", "Einsum"): einsum}
