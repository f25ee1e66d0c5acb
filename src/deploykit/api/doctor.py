"""`deploykit doctor`: what is installed and present here, and the command that brings what is missing."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import platform
import re
import sys
import time
from pathlib import Path
from typing import Any

from deploykit.environments import ENVIRONMENTS, state_of
from deploykit.environments.making import install as make_environment
from deploykit.environments.making import remove as remove_environment
from deploykit.errors import UsageError
from deploykit.lazy import version_of
from deploykit.progress import OnProgress, silent
from deploykit.report import Finding, Report, note
from deploykit.version import __version__

_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)(?P<rest>.*)", re.DOTALL)
_EXTRA = re.compile(r"""extra\s*==\s*['"](?P<extra>[\w.-]+)['"]""")
# What the INT8 and low-precision kernels of CPU engines look for, by the kernel's names.
_CPU_FLAGS = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx_vnni": "AVX-VNNI",
    "avx512_vnni": "AVX512-VNNI",
    "avx512_bf16": "AVX512-BF16",
    "amx_int8": "AMX-INT8",
    "amx_bf16": "AMX-BF16",
    "asimddp": "DotProd",
    "i8mm": "I8MM",
    "sve": "SVE",
}
_OMITTED = {"all", "dev"}
_NVIDIA = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"))


def doctor(
    *,
    install: str | None = None,
    remove: str | None = None,
    force: bool = False,
    on_progress: OnProgress = silent,
) -> Report:
    """Versions, extras, managed environments, CPU features and drivers of this machine; imports no backend.

    install: makes that managed environment first, unless it is there (force: in any case). remove: deletes it.
    Returns a report with metrics {"machine": {...}, "core": {distribution: version}, "extras": [{"name", "installed",
    "packages": {distribution: version or null}, "install": command or null}], "environments": [{"name", "installed",
    "version", "wanted", "size_bytes", "path", "serves", "refused", "install"}]} and a note for each missing extra.
    Raises UsageError (DK560, DK800), UnavailableError (DK561, DK562) with the reason where an environment cannot be
    made, OutputError where its folder cannot be written.
    """
    started = time.perf_counter()
    if install is not None and remove is not None:
        raise UsageError("--install and --remove were both given", hint="give one of them")
    said = []
    if install is not None:
        said.append(_made(install, force=force, on_progress=on_progress))
    if remove is not None:
        said.append(_removed(remove))
    core, extras = _requirements()
    rows = [_extra_row(name, members) for name, members in extras.items()]
    report = Report("doctor")
    report.metrics = {
        "machine": _machine(),
        "core": {name: version_of(name) for name in core},
        "extras": rows,
        "environments": [state_of(name).as_dict() for name in ENVIRONMENTS],
    }
    report.add(*said, *[_missing(row) for row in rows if not row["installed"]])
    report.seconds = time.perf_counter() - started
    return report


def _made(name: str, *, force: bool, on_progress: OnProgress) -> Finding:
    before = state_of(name, measured=False)
    made = make_environment(name, force=force, on_progress=on_progress)
    there = before.installed is not None and not before.outdated and not force
    text = f"the managed environment {name!r} ({made.installed}) {'was there already' if there else 'was made'}"
    return note("DK563", f"{text}: {made.path}, {made.size_bytes / 1e9:.1f} GB")


def _removed(name: str) -> Finding:
    before = remove_environment(name)
    if before.installed is None:
        return note("DK563", f"the managed environment {name!r} was not there; nothing is left of it")
    return note("DK563", f"the managed environment {name!r} ({before.installed}) was removed: {before.path}")


def _missing(row: dict[str, Any]) -> Finding:
    absent = ", ".join(name for name, version in row["packages"].items() if version is None)
    if row["install"] is None:
        return note("DK900", f"the extra {row['name']!r} has nothing for this system")
    return note("DK900", f"the extra {row['name']!r} is not complete: {absent} missing", hint=row["install"])


def _requirements() -> tuple[list[str], dict[str, list[str]]]:
    """Distributions that every install has, and those of each extra as far as they exist for this system."""
    core: list[str] = []
    extras: dict[str, list[str]] = {}
    for line in importlib.metadata.requires("deploykit") or []:
        text, _, marker = line.partition(";")
        found = _REQUIREMENT.match(text.strip())
        if found is None:
            continue
        extra = _EXTRA.search(marker)
        if extra is None:
            core.append(found["name"])
        elif extra["extra"] not in _OMITTED:
            members = extras.setdefault(extra["extra"], [])
            if _applies(marker):
                members.append(found["name"])
    return core, extras


def _applies(marker: str) -> bool:
    """Whether the marker's conditions on the system hold; those on anything else (the extra) are taken to."""
    # Markers are Python expressions: these compare names with texts, and a package for the whole grammar is not needed.
    known = {"sys_platform": sys.platform, "platform_machine": platform.machine()}

    def holds(node: ast.expr) -> bool:
        match node:
            case ast.BoolOp(op=ast.And(), values=parts):
                return all(map(holds, parts))
            case ast.BoolOp(values=parts):
                return any(map(holds, parts))
            case ast.Compare(left=ast.Name(id=name), ops=[ast.Eq()], comparators=[ast.Constant(value=value)]):
                return known.get(name, value) == value
            case ast.Compare(left=ast.Name(id=name), ops=[ast.NotEq()], comparators=[ast.Constant(value=value)]):
                return known.get(name) != value
        return True

    return holds(ast.parse(marker.strip(), mode="eval").body)


def _extra_row(name: str, members: list[str]) -> dict[str, Any]:
    packages = {member: version_of(member) for member in dict.fromkeys(members)}
    return {
        "name": name,
        "installed": bool(packages) and all(version is not None for version in packages.values()),
        "packages": packages,
        "install": f"pip install 'deploykit[{name}]'" if packages else None,
    }


def _machine() -> dict[str, Any]:
    return {
        "deploykit": __version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": platform.platform(),
        "cpus": os.cpu_count(),
        "cpu features": cpu_features(),
        "gpu driver": gpu_driver(),
    }


def cpu_features(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str] | None:
    """The features that fast INT8 and half-precision kernels need, of this CPU; None where the system does not say."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:  # macOS and Windows have no such file
        return None
    flags = {
        flag for line in text.splitlines() if line.lower().startswith(("flags", "features")) for flag in line.split()
    }
    return [title for flag, title in _CPU_FLAGS.items() if flag in flags]


def gpu_driver() -> str:
    """Which GPU driver is present, from files alone: nothing of a vendor is loaded."""
    if sys.platform == "darwin":
        return "Metal (part of macOS)"
    version = _NVIDIA[0]
    if version.exists():
        found = re.search(r"Kernel Module[^\d]*([\d.]+)", version.read_text(encoding="utf-8", errors="replace"))
        return f"NVIDIA {found.group(1)}" if found else "NVIDIA"
    if _NVIDIA[1].exists() or Path(os.environ.get("SYSTEMROOT", "/nonexistent"), "System32", "nvcuda.dll").exists():
        return "NVIDIA"
    return "none found"
