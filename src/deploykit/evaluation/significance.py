"""Whether two models that were scored on the same samples differ by more than chance would have it."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deploykit.evaluation.base import Metric
    from deploykit.parity import Array

LEVEL = 0.05
_ROUNDS = 10_000
_AT_ONCE = 4_000_000  # random signs drawn at a time


@dataclasses.dataclass(frozen=True, slots=True)
class Significance:
    """p: how often chance alone makes a difference as large, two-sided. samples: that were scored by both."""

    p: float
    test: Literal["McNemar", "randomization"]
    samples: int

    @property
    def significant(self) -> bool:
        """Whether the two differ at the level of 5 percent."""
        return self.p < LEVEL


def paired_test(reference: Metric, candidate: Metric, seed: int = 0) -> Significance | None:
    """The paired test of two metrics that took the same samples in the same order.

    Right or wrong by sample: McNemar's test in its exact form (the binomial of the samples that only one of them gets
    right; McNemar 1947). Otherwise approximate randomization (Noreen 1989): each sample's two scores change places at
    random. None for a metric that is no ratio of sums over samples (F1, AUC, mAP, IoU, a function of the whole set).
    Raises ValueError when the samples are not the same.
    """
    if not reference.pairs or not candidate.pairs:
        return None
    return paired_test_of(reference.pairs, candidate.pairs, seed)


def paired_test_of(
    reference: Sequence[tuple[float, float]], candidate: Sequence[tuple[float, float]], seed: int = 0
) -> Significance:
    """As `paired_test`, of the (numerator, denominator) of each sample."""
    ours, theirs = np.array(reference, np.float64), np.array(candidate, np.float64)
    if ours.shape != theirs.shape or not np.array_equal(ours[:, 1], theirs[:, 1]):
        raise ValueError("the two were not scored on the same samples")
    if np.all(ours[:, 1] == 1) and np.isin(np.stack([ours[:, 0], theirs[:, 0]]), (0, 1)).all():
        better = int(np.count_nonzero(ours[:, 0] > theirs[:, 0]))
        worse = int(np.count_nonzero(ours[:, 0] < theirs[:, 0]))
        return Significance(_binomial(min(better, worse), better + worse), "McNemar", len(ours))
    return Significance(_randomized(ours[:, 0] - theirs[:, 0], seed), "randomization", len(ours))


def _binomial(fewer: int, total: int) -> float:
    """Two-sided exact probability of at most so many of `total` tosses of a fair coin."""
    tail = sum(math.comb(total, count) for count in range(fewer + 1))
    return min(1.0, float(Fraction(2 * tail, 2**total)))


def _randomized(differences: Array, seed: int) -> float:
    """Share of random signs under which the sum is at least as far from 0; a NaN or infinity is told apart always."""
    if not np.isfinite(differences).all():
        return 0.0
    differences = differences[differences != 0]
    if not differences.size:
        return 1.0
    rng = np.random.default_rng(seed)
    # A hair below, so that the same sum in another order counts as equal.
    limit = abs(float(differences.sum())) * (1 - 1e-9)
    rounds = max(1, min(_ROUNDS, _AT_ONCE // differences.size))
    reached, left = 0, _ROUNDS
    while left > 0:
        now = min(rounds, left)
        signs = rng.integers(0, 2, (now, differences.size), dtype=np.int8) * np.int8(2) - np.int8(1)
        reached += int(np.count_nonzero(np.abs(signs @ differences) >= limit))
        left -= now
    return (reached + 1) / (_ROUNDS + 1)
