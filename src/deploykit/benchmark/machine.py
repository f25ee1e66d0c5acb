"""The machine that a benchmark ran on, as far as it decides how long a call takes."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

_CPUINFO = Path("/proc/cpuinfo")


def machine(cpuinfo: Path = _CPUINFO) -> dict[str, Any]:
    """Its cpu (model name), cpus (that this process may use), architecture and system."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": _cpu(cpuinfo),
        "cpus": usable,
        "architecture": platform.machine(),
        "system": platform.system(),
    }


def _cpu(cpuinfo: Path) -> str:
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux
        return platform.processor() or platform.machine()
    facts = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    named = {key.strip(): value.strip() for key, value in facts.items()}
    return named.get("model name") or named.get("Hardware") or platform.machine()
