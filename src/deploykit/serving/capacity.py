"""How many CPUs this process may really use, and how requests and engine threads share them."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_CGROUP = Path("/sys/fs/cgroup")
# Below this a second thread costs more in hand-over than it computes; several requests side by side gain more.
_SMALL_SECONDS = 0.004


@dataclasses.dataclass(frozen=True, slots=True)
class Capacity:
    """lanes: requests that compute at the same time. threads: of the engine in each. Their product fits the CPUs."""

    lanes: int
    threads: int


class Permits:
    """The CPUs of a server, shared by its models: together they use no more threads than there are."""

    def __init__(self, cpus: int) -> None:
        """cpus: from `usable_cpus`."""
        self._free = cpus
        self._all = cpus
        self._changed = threading.Condition()
        self._line: collections.deque[object] = collections.deque()

    @contextlib.contextmanager
    def held(self, threads: int) -> Iterator[None]:
        """So many CPUs, at most all, while the block runs; waits for them.

        Who came first is first: a model that wants all CPUs would wait forever beside busy ones that want one each.
        """
        wanted, mine = min(threads, self._all), object()
        with self._changed:
            self._line.append(mine)
            self._changed.wait_for(lambda: self._line[0] is mine and self._free >= wanted)
            self._line.popleft()
            self._free -= wanted
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._free += wanted
                self._changed.notify_all()


def usable_cpus(cgroup: Path = _CGROUP, membership: Path = Path("/proc/self/cgroup")) -> int:
    """CPUs of this process: its affinity (`taskset`), cut to the cgroup's quota (`docker --cpus`), at least 1."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(cgroup, membership)
    return max(1, min(affinity, math.ceil(quota - 0.01)) if quota is not None else affinity)


def _quota(cgroup: Path, membership: Path) -> float | None:
    """CPUs that the smallest quota on the way to the root allows; None without one."""
    found = []
    for folder in _own_folders(cgroup, membership):
        version_2 = _numbers(folder / "cpu.max")
        if len(version_2) == 2:
            found.append(version_2[0] / version_2[1])
        version_1 = _numbers(folder / "cpu.cfs_quota_us") + _numbers(folder / "cpu.cfs_period_us")
        if len(version_1) == 2 and version_1[0] > 0:
            found.append(version_1[0] / version_1[1])
    return min(found, default=None)


def _own_folders(cgroup: Path, membership: Path) -> list[Path]:
    # A container sees its own group as the root; outside, the group of the process and those above it count.
    folders = [cgroup, cgroup / "cpu", cgroup / "cpu,cpuacct"]
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return folders
    for line in lines:
        _, controllers, path = line.split(":", 2)
        base = cgroup if not controllers else cgroup / controllers
        group = base / path.lstrip("/")
        folders += [parent for parent in (group, *group.parents) if parent.is_relative_to(base)]
    return folders


def _numbers(file: Path) -> list[float]:
    """The numbers in a file; none for `max`, which means no limit, or when there is no such file."""
    try:
        words = file.read_text(encoding="utf-8").split()
    except OSError:
        return []
    try:
        return [float(word) for word in words]
    except ValueError:
        return []


def plan(cpus: int, seconds: float | None, *, concurrent: bool, instances: int | None = None) -> Capacity:
    """How to share the CPUs, from the time that one call takes on all of them (None: not known).

    concurrent: whether the engine takes calls from several threads. A small model computes on one thread for as many
    requests as there are CPUs; a large one gets all CPUs for one request after the other. instances: lanes that were
    asked for; they share the CPUs.
    """
    if instances is not None:
        lanes = instances if concurrent else 1
        return Capacity(lanes=lanes, threads=max(1, cpus // lanes))
    if concurrent and seconds is not None and seconds < _SMALL_SECONDS:
        return Capacity(lanes=cpus, threads=1)
    return Capacity(lanes=1, threads=cpus)
