"""The measuring side: one artifact in a process of its own, called through `isolation.Worker`.

The process keeps what it loaded between requests, so that artifacts can be measured in turns.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from deploykit.benchmark.feeds import read_feeds
from deploykit.comparison import Side, carry_of, runtime_options
from deploykit.errors import DataError, UnavailableError
from deploykit.runtime import open_runtime

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deploykit.data.samples import Sample
    from deploykit.runtime import Runtime

# Warm when the median of a stretch of calls is this close to that of the stretch before.
STABLE_WITHIN = 0.05
_STRETCH_S = 0.05
_STRETCH_CALLS = 3
_MB = 1e6


@dataclasses.dataclass(slots=True)
class _Loaded:
    """What is measured. runtime: None for a server; crew: further clients of it, each with its own connection."""

    side: Side
    samples: Iterator[Sample]
    first: Sample
    runtime: Runtime | None = None
    crew: list[_Loaded] = dataclasses.field(default_factory=list)

    def call(self) -> float:
        """One timed call, in ms: from feeds in the artifact's dtypes to its outputs; state is carried outside."""
        sample = next(self.samples)
        feeds = self.side.feeds(sample)
        start = time.perf_counter_ns()
        try:
            outputs = self.side.predict(feeds, sample.name)
        except UnavailableError:  # a server that has gone
            raise
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


def loaded() -> _Loaded:
    """What this process measures."""
    return _loaded["one"]


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
    one = _Loaded(Side(runtime, carry_of(data), Path(artifact).name), itertools.cycle(samples), samples[0], runtime)
    _loaded["one"] = one
    return {
        "engine": runtime.engine,
        "execution": runtime.execution,
        "load_s": seconds,
        "first_ms": one.call(),
        "rss_mb": {"base": base, "loaded": loaded},
    }


def connect_job(url: str, name: str, clients: int, feeds: list[str], data: dict[str, Any]) -> dict[str, Any]:
    """Connects `clients` clients to a running server, reads the feeds and makes each one's first call.

    Returns as `load_job`, without load_s and memory, which are the server's own affair.
    """
    from deploykit.benchmark.server import open_server

    samples = read_feeds(feeds)
    crew = []
    for client in range(clients):
        runtime = open_server(url, name)
        side = Side(runtime, carry_of(data), name)
        # Each client begins elsewhere, as users do.
        mine = itertools.cycle(samples[client % len(samples) :] + samples[: client % len(samples)])
        crew.append(_Loaded(side, mine, samples[0]))
    first = [member.call() for member in crew]
    crew[0].crew = crew[1:]
    _loaded["one"] = crew[0]
    nothing = {"base": None, "loaded": None}
    return {"engine": runtime.engine, "execution": "real", "load_s": None, "first_ms": first[0], "rss_mb": nothing}


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
        median = statistics.median_high(stretch)
        if before is not None and abs(median - before) <= STABLE_WITHIN * before:
            return {"stable": True, "median_ms": median, "calls": calls}
        if time.perf_counter() >= end:
            return {"stable": False, "median_ms": median, "calls": calls}
        before = median


def block_job(seconds: float) -> dict[str, Any]:
    """One block: an unmeasured call, since other artifacts ran in between, then calls for `seconds`, at least one.

    Returns {"latencies_ms" (of all clients), "wall_s", "cpu_s" (of the process, all threads), "waited_s" (see
    `waited`), "rss_mb" (now), "peak_mb" (of the process so far)}.
    """
    one = _loaded["one"]
    one.call()
    before = waited()
    started, worked = time.perf_counter(), time.process_time()
    times = _together(one, seconds) if one.crew else _stretch(one, seconds, 1)
    spent: dict[str, Any] = {"wall_s": time.perf_counter() - started, "cpu_s": time.process_time() - worked}
    after = waited()
    spent["waited_s"] = max(0.0, after - before) if before is not None and after is not None else None
    return {"latencies_ms": times, **spent, "rss_mb": resident_mb(), "peak_mb": peak_mb()}


def _together(one: _Loaded, seconds: float) -> list[float]:
    """The calls of all clients at once, a thread each. Raises the first failure of any."""
    times: list[list[float]] = []
    failures: list[BaseException] = []

    def work(member: _Loaded) -> None:
        try:
            times.append(_stretch(member, seconds, 1))
        except BaseException as problem:  # the thread's end would hide it
            failures.append(problem)

    threads = [threading.Thread(target=work, args=(member,), daemon=True) for member in (one, *one.crew)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return [time for client in times for time in client]


def _stretch(one: _Loaded, seconds: float, calls: int) -> list[float]:
    end = time.perf_counter() + seconds
    times = [one.call() for _ in range(calls)]
    while time.perf_counter() < end:
        times.append(one.call())
    return times


def waited() -> float | None:
    """Seconds that the threads of this process could have run, and another program had the processor; None off Linux.

    Source: Documentation/scheduler/sched-stats.rst, /proc/<pid>/schedstat: nanoseconds waiting on a run queue, second.
    """
    total = 0
    for thread in Path("/proc/self/task").glob("*/schedstat"):
        try:
            total += int(thread.read_text(encoding="ascii").split()[1])
        except (OSError, IndexError, ValueError):  # it has ended, or the kernel keeps none
            continue
    return total / 1e9 if total else None


def resident_mb() -> float:
    """Resident memory of this process and of those it started (an engine in Node, say) now, in MB."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(map(_resident, processes)) / _MB


def _resident(process: psutil.Process) -> float:
    try:
        return float(process.memory_info().rss)
    except psutil.Error:  # it has just ended
        return 0.0


def peak_mb() -> float:
    """The largest resident memory of this process so far, and of those it started, in MB; each its own largest.

    Linux: VmHWM. (getrusage's ru_maxrss is no use there: it survives exec, so a child starts at its parent's size.)
    macOS: ru_maxrss, in bytes. Windows: the peak working set.
    """
    if Path("/proc/self/status").exists():
        started = psutil.Process().children(recursive=True)
        return sum(_largest(Path(f"/proc/{pid}/status")) for pid in ("self", *(one.pid for one in started))) / _MB
    if sys.platform == "win32":
        return float(psutil.Process().memory_info().peak_wset) / _MB
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _MB


def _largest(status: Path) -> float:
    with contextlib.suppress(OSError):  # a process that has just ended
        for line in status.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024.0
    return 0.0
