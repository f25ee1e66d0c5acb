"""Einsum, as transposes, one matrix product a pair of operands, and sums."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING

import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var

from deploykit.converters.coreml.lowering.context import OpContext, Refused, lowers
from deploykit.opsupport.verdict import Verdict, supported, unknown, unsupported

if TYPE_CHECKING:
    from deploykit.converters.coreml.lowering.node import Node


def _terms(node: Node) -> tuple[list[str], str]:
    """The letters of each operand and of the result; without an arrow those that stand once, in alphabetical order."""
    left, arrow, right = node.text("equation").replace(" ", "").partition("->")
    terms = left.split(",")
    joined = "".join(terms)
    return terms, right if arrow else "".join(sorted(c for c in set(joined) if joined.count(c) == 1))


def _form(node: Node) -> Verdict:
    terms, result = _terms(node)
    if any(c not in string.ascii_letters for c in "".join([*terms, result])):
        return unsupported("its equation has an ellipsis", remedy="name every axis in the equation")
    if any(len(set(term)) != len(term) for term in terms):
        return unsupported("its equation takes a diagonal", remedy="take the diagonal with a Gather before it")
    if any(node.rank(place) is None for place in range(node.input_count)):
        return unknown("the rank of an input is unknown", remedy="export with a known rank")
    if node.is_integer(0):
        return unsupported("Core ML multiplies matrices of floats only", remedy="cast to float32 before it")
    return supported()


@lowers("Einsum", since=12, when=_form)
def einsum(op: OpContext) -> Var:
    """Products summed over the letters that the result lacks; operands taken two at a time, from the left."""
    terms, result = _terms(op)
    x, letters = op.input(0), terms[0]
    for place in range(1, len(terms)):
        later = set(result).union(*terms[place + 1 :])
        x, letters = _product(x, letters, op.input(place), terms[place], later)
    x, letters = _summed(x, letters, set(result))
    return _ordered(x, letters, result)


def _summed(x: Var, letters: str, kept: set[str]) -> tuple[Var, str]:
    axes = [axis for axis, letter in enumerate(letters) if letter not in kept]
    if not axes:
        return x, letters
    return mb.reduce_sum(x=x, axes=axes, keep_dims=False), "".join(c for c in letters if c in kept)


def _ordered(x: Var, letters: str, wanted: str) -> Var:
    if letters == wanted:
        return mb.identity(x=x)
    return mb.transpose(x=x, perm=[letters.index(letter) for letter in wanted])


def _product(x: Var, a: str, y: Var, b: str, later: set[str]) -> tuple[Var, str]:
    """One pair. Axes are put in the order batch, own, summed (summed, own on the right side), and own axes merged."""
    x, a = _summed(x, a, later | set(b))
    y, b = _summed(y, b, later | set(a))
    batch = "".join(c for c in a if c in b and c in later)
    summed = "".join(c for c in a if c in b and c not in later)
    left, right = "".join(c for c in a if c not in b), "".join(c for c in b if c not in a)
    sizes = {**dict(zip(b, y.shape, strict=True)), **dict(zip(a, x.shape, strict=True))}
    first = _matrix(_ordered(x, a, batch + left + summed), batch, left, summed, sizes)
    second = _matrix(_ordered(y, b, batch + summed + right), batch, summed, right, sizes)
    made = mb.matmul(x=first, y=second)
    if len(left) == len(right) == 1:
        return made, batch + left + right
    letters = batch + left + right
    if not letters:
        return mb.squeeze(x=made), letters
    return mb.reshape(x=made, shape=_shape(letters, sizes)), letters


def _matrix(x: Var, batch: str, rows: str, columns: str, sizes: dict[str, object]) -> Var:
    """[*batch, rows, columns], several axes merged into one, none at all as one of size 1."""
    if len(rows) == len(columns) == 1:
        return x
    merged = [_count(rows, sizes), _count(columns, sizes)]
    return mb.reshape(x=x, shape=[*(_shape(batch, sizes) if batch else []), *merged])


def _shape(letters: str, sizes: dict[str, object]) -> list[int]:
    varying = [letter for letter in letters if not isinstance(sizes[letter], (int, np.integer))]
    if len(varying) > 1:
        raise Refused("more than one size of its equation varies", "fix all sizes but one")
    return [-1 if letter in varying else int(str(sizes[letter])) for letter in letters]


def _count(letters: str, sizes: dict[str, object]) -> int:
    if not all(isinstance(sizes[letter], (int, np.integer)) for letter in letters):
        raise Refused("it merges axes of which a size varies", "fix the sizes, or use MatMul")
    return int(np.prod([int(str(sizes[letter])) for letter in letters], dtype=np.int64))
