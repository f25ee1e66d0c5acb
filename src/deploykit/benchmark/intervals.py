"""How sure a ratio of two latencies is: bootstrap intervals over blocks, and over repeated runs.

Calls that follow one another are not independent: what slows a machine down lasts longer than one call. So the unit is
the block (its median), and the processes of another run are a level above it. Blocks are drawn with replacement within
runs, and runs among runs: the hierarchical bootstrap of A. C. Davison and D. V. Hinkley, Bootstrap Methods and their
Application (1997), 3.8, used for ratios of speeds by T. Kalibera and R. Jones, Rigorous Benchmarking in Reasonable
Time (ISMM 2013). Intervals are percentiles of the drawn medians' ratio (B. Efron and R. Tibshirani, An Introduction to
the Bootstrap (1993), 13.3).
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Array = np.ndarray[Any, np.dtype[np.float64]]

CONFIDENCE = 0.95
_DRAWS = 2000


@dataclasses.dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of latencies with the bounds of its interval; `low` and `high` hold it at 95 % confidence."""

    value: float
    low: float
    high: float

    def describe(self) -> str:
        """As in `1.52x (1.48 to 1.55)`."""
        return f"{self.value:.2f}x ({self.low:.2f} to {self.high:.2f})"

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {"ratio": self.value, "interval": [self.low, self.high]}


def ratio_of(now: Sequence[Array], before: Sequence[Array]) -> Ratio:
    """Of what is measured now to what was before, each as runs of blocks in the logarithm of milliseconds.

    The same numbers give the same interval: the draws have a fixed seed.
    """
    draws = np.random.default_rng(0)
    value = _centre(now) - _centre(before)
    drawn = _drawn(now, draws) - _drawn(before, draws)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return Ratio(math.exp(value), math.exp(min(low, value)), math.exp(max(high, value)))


def paired_ratio(slow: Mapping[str, Any], fast: Mapping[str, Any]) -> Ratio | None:
    """How many times faster one row of a benchmark is than another; None where their blocks do not stand in pairs.

    The blocks of one round ran side by side, so that their ratio is free of what slowed the machine for a while.
    """
    blocks = slow.get("blocks_ms") or [], fast.get("blocks_ms") or []
    if len(blocks[0]) != len(blocks[1]) or len(blocks[0]) < 2 or not all(map(all, blocks)):
        return None
    return ratio_of([np.log(blocks[0]) - np.log(blocks[1])], [np.zeros(1)])


def _centre(runs: Sequence[Array]) -> float:
    """The median over runs of their blocks' medians."""
    return float(np.median([np.median(blocks) for blocks in runs]))


def _drawn(runs: Sequence[Array], draws: np.random.Generator) -> Array:
    """The centre of each of many sets of blocks, drawn within runs that are drawn themselves."""
    medians = []
    for _ in runs:
        chosen = draws.integers(len(runs), size=_DRAWS)
        own = [np.median(run[draws.integers(len(run), size=(_DRAWS, len(run)))], axis=1) for run in runs]
        medians.append(np.choose(chosen, own))
    found: Array = np.median(medians, axis=0)
    return found
