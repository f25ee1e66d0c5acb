"""`bench --per-op`: the engine's own profile of one call, by kernel, operator, precision and source module."""

from __future__ import annotations

import dataclasses
import re
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.benchmark import child
from deploykit.benchmark.subject import WAITED_LIMIT
from deploykit.report import Finding, note

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from deploykit.runtime import Kernel

_CALLS = (3, 7)  # profiled calls, at least and at most
_LIMIT_S = 4.0
_ALONE = (5, 100)  # unprofiled calls, at least and at most
_ALONE_S = 0.5
# A profile whose kernels sum to less or more than this share of an unprofiled call is no picture of it.
_PLAUSIBLE = (0.67, 1.5)
SEVERAL, UNTOLD = "(several modules)", "(not told)"


def profile_job(models: Sequence[str]) -> dict[str, Any]:
    """The kernels of the loaded artifact on its first feeds, after everything else was measured.

    models: ONNX files whose nodes the kernels may have come from; the first one that knows a node tells its module.
    Returns {"kernels": rows, or None where the engine tells nothing, "why", "unprofiled_ms", "calls"}; each kernel's
    time is the mean of the faster half of 3 to 7 profiled calls. unprofiled_ms: the median of plain
    calls on the same feeds.
    """
    one = child.loaded()
    if one.runtime is None:
        return _untold("a server tells no profile")
    feeds = one.side.feeds(one.first)
    alone = _alone(one.runtime, feeds)
    started, before = time.perf_counter(), child.waited()
    end = started + _LIMIT_S
    runs: list[list[Kernel]] = []
    try:
        while len(runs) < _CALLS[0] or (len(runs) < _CALLS[1] and time.perf_counter() < end):
            found = one.runtime.kernels(feeds)
            if found is None:
                return _untold("the engine tells no profile")
            runs.append(found)
    except Exception as problem:  # each engine's profiler has its own classes, and without it all else stands
        return _untold(f"the engine's profiler failed: {type(problem).__name__}: {str(problem)[:300]}")
    after, spent = child.waited(), time.perf_counter() - started
    waited = None if before is None or after is None else max(0.0, after - before) / spent
    kernels = _median(runs)
    if not any(kernel.microseconds for kernel in kernels):
        return _untold("the engine tells its kernels, and not their times")
    scopes = _scopes(kernels, models)
    rows = [{**dataclasses.asdict(kernel), "module": module_of(kernel, scopes)} for kernel in kernels]
    return {"kernels": rows, "why": None, "unprofiled_ms": alone, "calls": len(runs), "waited_share": waited}


def _untold(why: str) -> dict[str, Any]:
    return {"kernels": None, "why": why, "unprofiled_ms": None, "calls": 0, "waited_share": None}


def _alone(runtime: Any, feeds: Mapping[str, Any]) -> float:
    """The median of plain calls, in ms."""
    least, most = _ALONE
    end = time.perf_counter() + _ALONE_S
    times: list[float] = []
    while len(times) < least or (len(times) < most and time.perf_counter() < end):
        start = time.perf_counter_ns()
        runtime.predict(feeds)
        times.append((time.perf_counter_ns() - start) / 1e6)
    return statistics.median(times)


def _median(runs: Sequence[Sequence[Kernel]]) -> list[Kernel]:
    """Each kernel with its undisturbed time; the fastest run where the runs have other kernels.

    Kernels are matched by place and type: some engines number the ones that they add anew for each session.
    """
    types = [[kernel.op for kernel in run] for run in runs]
    if any(other != types[0] for other in types):
        return list(min(runs, key=lambda run: sum(kernel.microseconds or 0 for kernel in run)))
    found = []
    for same in zip(*runs, strict=True):
        times = [kernel.microseconds for kernel in same if kernel.microseconds is not None]
        found.append(dataclasses.replace(same[0], microseconds=_undisturbed(times) if times else None))
    return found


def _undisturbed(times: Sequence[float]) -> float:
    """The mean of the faster half: another program's turn makes one kernel forty milliseconds long, and never shorter.

    Such noise only adds (J. Chen and J. Revels, Robust benchmarking in noisy environments, 2016); a mean, since
    profilers count in whole microseconds.
    """
    kept = sorted(times)[: max(1, len(times) // 2)]
    return sum(kept) / len(kept)


def _scopes(kernels: Iterable[Kernel], models: Sequence[str]) -> dict[str, str]:
    """The module of each node that a kernel was made of, as the exporter recorded it."""
    from deploykit import graph
    from deploykit.graph.scopes import scope_of

    wanted = {name for kernel in kernels for name in (kernel.name, *kernel.nodes)}
    for path in models:
        told: dict[str, str] = {}
        known = False
        for node in (node for part in graph.load(Path(path)).graphs() for node in part):
            # Some engines call a layer by the tensor that it makes.
            names = wanted.intersection([node.name, *(value.name for value in node.outputs)])
            known = known or bool(names)
            scope = scope_of(node) if names else None
            told |= dict.fromkeys((name for name in names if name), scope) if scope else {}
        if known:
            return told
    return {}


def module_of(kernel: Kernel, scopes: Mapping[str, str]) -> str:
    """The module that a kernel computes; what the modules of a fused one have in common.

    Where no model tells, a node's name may: the TorchScript exporter names nodes by path.
    """
    from deploykit.graph.scopes import scope_of_name

    named = kernel.nodes or (kernel.name,)
    # A kernel of no node is the engine's own, such as a change of layout: its name only sounds like one.
    guess = bool(kernel.nodes) or not scopes
    modules = [scopes.get(name) or (scope_of_name(name) if guess else None) for name in named]
    known = list(dict.fromkeys(module for module in modules if module))
    if not known:
        return UNTOLD
    if len(known) == 1:
        return known[0]
    paths = [re.sub(r" \(.*\)$", "", module).split(".") for module in known]
    common = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return ".".join(common) or SEVERAL


def summary(found: Mapping[str, Any]) -> dict[str, Any] | None:
    """The JSON of one artifact's profile: kernels with their shares, roll-ups, and how it fits the plain latency.

    Shares are of the sum of all times, from 0 to 1. A control flow node has no time of its own, its body has.
    """
    if found["kernels"] is None:
        return None
    rows = sorted(found["kernels"], key=lambda row: -(row["microseconds"] or 0))
    total = sum(row["microseconds"] or 0 for row in rows)
    kernels = [row | {"share": None if row["microseconds"] is None else row["microseconds"] / total} for row in rows]
    return {
        "kernels": kernels,
        **{f"by_{key}": _rolled(kernels, key, total) for key in ("op", "precision", "module")},
        "sum_ms": total / 1e3,
        "unprofiled_ms": found["unprofiled_ms"],
        "ratio": total / 1e3 / found["unprofiled_ms"],
        "calls": found["calls"],
        "waited_share": found["waited_share"],
    }


def _rolled(kernels: Sequence[Mapping[str, Any]], key: str, total: float) -> list[dict[str, Any]]:
    sums: dict[str, list[float]] = {}
    for row in kernels:
        sums.setdefault(row[key], []).append(row["microseconds"] or 0)
    rolled = [
        {key: name, "kernels": len(times), "microseconds": sum(times), "share": sum(times) / total}
        for name, times in sums.items()
    ]
    return sorted(rolled, key=lambda row: -row["microseconds"])


def about(label: str, target: str, found: Mapping[str, Any], profile: Mapping[str, Any] | None) -> list[Finding]:
    """A note where nothing is told (DK410), and where a profile is no picture of a plain call (DK411)."""
    if profile is None:
        return [note("DK410", f"{label}: no time by operator: {found['why']}", target=target)]
    found_here = []
    if (profile["waited_share"] or 0) > WAITED_LIMIT:
        busy = f"{profile['waited_share']:.0%} of its time"
        text = (
            f"{label}: its threads waited for a processor for {busy} while it was profiled: single kernels may be that"
        )
        found_here.append(note("DK411", text, target=target))
    if _PLAUSIBLE[0] <= profile["ratio"] <= _PLAUSIBLE[1]:
        return found_here
    text = (
        f"{label}: its kernels take {profile['sum_ms']:.4g} ms in the engine's profile, and a call without it"
        f" {profile['unprofiled_ms']:.4g} ms (x{profile['ratio']:.2f}): shares are those of the profiled call"
    )
    return [*found_here, note("DK411", text, target=target)]
