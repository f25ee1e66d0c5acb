"""GPTQ: weights rounded one column after another, the error of each made up for by the columns that follow."""

from __future__ import annotations

from typing import Any

import numpy as np

from deploykit.quantize.blocks import BlockWeight, in_blocks, rounded, searched_grid
from deploykit.quantize.slices import rows_of

Array = np.ndarray[Any, Any]
# Share of the mean of the diagonal that is added to it; the rows of the matrix that are worked on between updates.
DAMPING = 0.01
BATCH = 128
# Damping is raised tenfold so often before the matrix counts as singular.
ATTEMPTS = 5


class Gptq:
    """Rounds matrices that multiply the same activations; what depends on these only is computed once."""

    def __init__(self, hessian: Array) -> None:
        """hessian: sum of x x^T over the data, float32 [columns, columns]; its size is needed twice beside it."""
        energy = np.diag(hessian).astype(np.float64)
        smallest = energy[energy > 0].min(initial=np.inf)
        # A column that was always 0 counts as the weakest of the others, so that its grid still fits its weights.
        self._energy = np.where(energy > 0, energy, smallest if np.isfinite(smallest) else 1.0)
        self._order = np.argsort(-energy, kind="stable")
        self._inverse = _inverse_factor(hessian, self._order)

    def quantize(self, weight: Array, block: int, *, symmetric: bool = False) -> BlockWeight:
        """A matrix [rows, columns] that multiplies activations x, rounded so that |W x - Q x|^2 is small on the data.

        E. Frantar et al., GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers, ICLR 2023.
        Columns go in descending order of their activations' energy, with the grids of all blocks fixed before
        ("act-order" and "static groups" of the authors' code); each grid is the one with the least error weighted by
        that energy.
        """
        rows, columns = weight.shape
        blocks = -(-columns // block)
        made = BlockWeight(
            np.zeros((rows, blocks * block), np.uint8),
            np.empty((rows, blocks), np.float32),
            np.empty((rows, blocks), np.uint8),
            columns,
            block,
        )
        # Rows do not depend on each other: a large matrix is worked on in parts.
        for part in rows_of(weight):
            self._quantize_rows(np.asarray(weight[part], np.float32), made, part, symmetric=symmetric)
        return made

    def _quantize_rows(self, weight: Array, made: BlockWeight, part: slice, *, symmetric: bool) -> None:
        block, columns = made.block, made.columns
        importance = in_blocks((self._energy / self._energy.max())[None].astype(np.float32), block)
        grid = searched_grid(in_blocks(weight, block), importance, symmetric=symmetric)
        scale, zero = (found[..., 0].T.copy() for found in grid)
        # One line a column: what the loop below touches lies together.
        left = np.ascontiguousarray(weight.T[self._order])
        codes = np.zeros((scale.shape[0] * block, weight.shape[0]), np.uint8)
        inverse = self._inverse
        for start in range(0, columns, BATCH):
            stop = min(start + BATCH, columns)
            lost = np.empty((stop - start, weight.shape[0]), np.float32)
            for number in range(start, stop):
                column = self._order[number]
                step, origin = scale[column // block], zero[column // block]
                level = rounded(left[number], step, origin)
                codes[column] = level
                missed = lost[number - start]
                np.subtract(left[number], (level - origin) * step, out=missed)
                missed /= inverse[number, number]
                left[number + 1 : stop] -= np.outer(inverse[number, number + 1 : stop], missed)
            left[stop:] -= inverse[start:stop, stop:].T @ lost
        made.codes[part], made.scale[part], made.zero[part] = codes.T, scale.T, zero.T


def _inverse_factor(hessian: Array, order: Array) -> Array:
    """The upper Cholesky factor of the inverse of the damped matrix in the given order, float32 (step 3)."""
    diagonal = np.diag(hessian)[order].astype(np.float64)
    dead = diagonal <= 0
    mean = float(diagonal[~dead].mean()) if not dead.all() else 1.0
    damping = DAMPING
    for _ in range(ATTEMPTS):
        damped = hessian[np.ix_(order, order)].astype(np.float64)
        damped[np.diag_indices_from(damped)] += np.where(dead, mean, damping * mean)
        try:
            # H = C C^T with C upper (the factor of the reversed matrix, reversed), so H^-1 = U^T U with U = C^-1.
            factor = np.linalg.cholesky(damped[::-1, ::-1])[::-1, ::-1]
        except np.linalg.LinAlgError:
            damping *= 10
            continue
        del damped
        return _inverse_of_upper(factor)
    return np.eye(hessian.shape[0], dtype=np.float32)


def _inverse_of_upper(factor: Array) -> Array:
    """The inverse of an upper triangular matrix, by halves: [[A, B], [0, D]]^-1 = [[A', -A' B D'], [0, D']]."""
    size = factor.shape[0]
    if size <= BATCH:
        return np.triu(np.linalg.inv(factor)).astype(np.float32)
    half = size // 2
    made = np.zeros((size, size), np.float32)
    made[:half, :half] = _inverse_of_upper(factor[:half, :half])
    made[half:, half:] = _inverse_of_upper(factor[half:, half:])
    made[:half, half:] = -(made[:half, :half].astype(np.float64) @ factor[:half, half:]) @ made[half:, half:]
    return made
