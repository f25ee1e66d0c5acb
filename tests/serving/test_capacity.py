from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from deploykit.serving.capacity import Capacity, Permits, plan, usable_cpus

if TYPE_CHECKING:
    from pathlib import Path

AFFINITY = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cgroup(folder: Path, files: dict[str, str], membership: str) -> tuple[Path, Path]:
    for name, text in files.items():
        file = folder / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    (folder / "self").write_text(membership, encoding="utf-8")
    return folder / "cgroup", folder / "self"


QUOTAS = {
    "version 2, in a container": ({"cpu.max": "100000 100000"}, "0::/\n", 1),
    "version 2, in a group": ({"a/b/cpu.max": "50000 100000"}, "0::/a/b\n", 1),
    "version 2, above the group": ({"a/cpu.max": "100000 100000", "a/b/cpu.max": "max 100000"}, "0::/a/b\n", 1),
    "version 1": ({"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, "4:cpu:/docker/x\n", 1),
    "no limit": ({"cpu.max": "max 100000"}, "0::/\n", AFFINITY),
    "version 1, no limit": ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "4:cpu:/\n", AFFINITY),
    "more than there are": ({"cpu.max": "99900000 100000"}, "0::/\n", AFFINITY),
    "no cgroup": ({}, "", AFFINITY),
}


@pytest.mark.parametrize("case", QUOTAS)
def test_cpus_are_those_of_the_quota(tmp_path: Path, case: str) -> None:
    files, membership, cpus = QUOTAS[case]
    assert usable_cpus(*cgroup(tmp_path, files, membership)) == cpus


def test_a_share_of_a_cpu_counts_as_one_more(tmp_path: Path) -> None:
    found = usable_cpus(*cgroup(tmp_path, {"cpu.max": "150000 100000"}, "0::/\n"))
    assert found == min(2, AFFINITY)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity")
def test_cpus_are_those_of_the_affinity() -> None:
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    code += "from deploykit.serving.capacity import usable_cpus; print(usable_cpus())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "1\n"


@pytest.mark.parametrize("cpus", [1, 2, 16])
@pytest.mark.parametrize("seconds", [0.0001, 0.02, 5, None])
@pytest.mark.parametrize("concurrent", [True, False])
def test_lanes_and_threads_never_exceed_the_cpus(cpus: int, seconds: float | None, concurrent: bool) -> None:
    found = plan(cpus, seconds, concurrent=concurrent)
    assert found.lanes * found.threads == cpus
    assert concurrent or found.lanes == 1


def test_small_models_run_side_by_side_and_large_ones_use_all_cpus() -> None:
    assert plan(8, 0.001, concurrent=True) == Capacity(lanes=8, threads=1)
    assert plan(8, 0.1, concurrent=True) == Capacity(lanes=1, threads=8)


def test_who_wants_all_cpus_is_not_passed_forever_by_those_who_want_one() -> None:
    permits = Permits(2)
    served = threading.Event()
    until = time.monotonic() + 20

    def small(first_pause: float) -> None:
        time.sleep(first_pause)
        while not served.is_set() and time.monotonic() < until:
            with permits.held(1):
                time.sleep(0.004)

    # Two that overlap, so that both CPUs are never free at once by themselves.
    threads = [threading.Thread(target=small, args=(pause,)) for pause in (0, 0.002)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    with permits.held(8):  # more than there are: all
        served.set()
        in_time = time.monotonic() < until
    for thread in threads:
        thread.join()
    assert in_time
