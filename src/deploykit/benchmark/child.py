"""The measuring side: one artifact in a process of its own, called through `isolation.Worker`.

The process keeps what it loaded between requests, so that artifacts can be measured in turns.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from deploykit.benchmark.feeds import read_feeds
from deploykit.comparison import Side, carry_of, runtime_options
from deploykit.errors import DataError
from deploykit.runtime import open_runtime

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deploykit.data.samples import Sample

# Warm when the median of a stretch of calls is this close to that of the stretch before.
STABLE_WITHIN = 0.05
_STRETCH_S = 0.05
_STRETCH_CALLS = 3
_MB = 1e6


@dataclasses.dataclass(slots=True)
class _Loaded:
    side: Side
    samples: Iterator[Sample]

    def call(self) -> float:
        """One timed call, in ms: from feeds in the artifact's dtypes to its outputs; state is carried outside."""
        sample = next(self.samples)
        feeds = self.side.feeds(sample)
        start = time.perf_counter_ns()
        try:
            outputs = self.side.predict(feeds, sample.name)
        except Exception as problem:  # each engine has its own classes
            given = ", ".join(f"{name} {list(array.shape)}" for name, array in feeds.items())
            raise DataError(
                f"{self.side.role} does not run on {sample.name} ({given}): {str(problem)[:600]}",
                code="DK449",
                hint="--data FILE gives inputs that it takes; --dim NAME=MIN..MAX bounds the sizes of random ones",
            ) from problem
        elapsed = time.perf_counter_ns() - start
        self.side.keep(outputs)
        return elapsed / 1e6


_loaded: dict[str, _Loaded] = {}


def load_job(artifact: str, feeds: list[str], data: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Loads the artifact, reads its feeds and makes the first call.

    Returns engine, execution, load_s (opening the artifact, the engine's import included), first_ms, and rss_mb base
    (before the engine is imported) and loaded, in MB of 10^6 bytes.
    """
    samples = read_feeds(feeds)
    base = resident_mb()
    started = time.perf_counter()
    runtime = open_runtime(Path(artifact), runtime_options(options))
    seconds = time.perf_counter() - started
    loaded = resident_mb()
    one = _Loaded(Side(runtime, carry_of(data), Path(artifact).name), itertools.cycle(samples))
    _loaded["one"] = one
    return {
        "engine": runtime.engine,
        "execution": runtime.execution,
        "load_s": seconds,
        "first_ms": one.call(),
        "rss_mb": {"base": base, "loaded": loaded},
    }


def warm_job(limit_s: float) -> dict[str, Any]:
    """Calls until two stretches of calls have the same median within 5 %, for at most `limit_s` seconds.

    Returns {"stable": bool, "median_ms", "calls"}.
    """
    one = _loaded["one"]
    end = time.perf_counter() + limit_s
    before, calls = None, 0
    while True:
        stretch = _stretch(one, _STRETCH_S, _STRETCH_CALLS)
        calls += len(stretch)
        median = sorted(stretch)[len(stretch) // 2]
        if before is not None and abs(median - before) <= STABLE_WITHIN * before:
            return {"stable": True, "median_ms": median, "calls": calls}
        if time.perf_counter() >= end:
            return {"stable": False, "median_ms": median, "calls": calls}
        before = median


def block_job(seconds: float) -> dict[str, Any]:
    """One block: an unmeasured call, since other artifacts ran in between, then calls for `seconds`, at least one.

    Returns {"latencies_ms", "rss_mb" (now), "peak_mb" (of the process so far)}.
    """
    one = _loaded["one"]
    one.call()
    return {"latencies_ms": _stretch(one, seconds, 1), "rss_mb": resident_mb(), "peak_mb": peak_mb()}


def _stretch(one: _Loaded, seconds: float, calls: int) -> list[float]:
    end = time.perf_counter() + seconds
    times = [one.call() for _ in range(calls)]
    while time.perf_counter() < end:
        times.append(one.call())
    return times


def resident_mb() -> float:
    """Resident memory of this process now, in MB."""
    return float(psutil.Process().memory_info().rss) / _MB


def peak_mb() -> float:
    """The largest resident memory of this process so far, in MB.

    Linux: VmHWM. (getrusage's ru_maxrss is no use there: it survives exec, so a child starts at its parent's size.)
    macOS: ru_maxrss, in bytes. Windows: the peak working set.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / _MB
    if sys.platform == "win32":
        return float(psutil.Process().memory_info().peak_wset) / _MB
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _MB
