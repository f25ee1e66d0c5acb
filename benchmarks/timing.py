"""Wall times of whole commands: interleaved runs, medians, ratios."""

from __future__ import annotations

import statistics
import subprocess
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def wall(command: Sequence[str]) -> float:
    """Seconds one run of a command takes; CalledProcessError with its output when it fails."""
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, text=True)
    return time.perf_counter() - started


def interleaved(sides: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each side in turn, A B A B ..., so that a drift of the machine's speed hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, run in sides.items():
            times[name].append(run())
    return times


def print_ratio(title: str, times: dict[str, list[float]], over: str, under: str) -> float:
    """Prints both medians with their range and the median of the pairwise ratios, which is returned."""
    print(title)
    for name, values in times.items():
        print(f"  {name:34} median {statistics.median(values):8.3f} s   (min {min(values):.3f}, max {max(values):.3f})")
    ratio = statistics.median(a / b for a, b in zip(times[over], times[under], strict=True))
    print(f"  ratio {over} / {under}: {ratio:.3f}\n")
    return ratio
