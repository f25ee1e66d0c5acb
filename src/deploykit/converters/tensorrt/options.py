"""What `--option` means for TensorRT and TensorRT for RTX: names and words to values, each checked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.converters.tensorrt.engine import COMPATIBILITY, OptionError
from deploykit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

SHARED = {
    "workspace": "the most scratch memory that one layer may use: 512MiB, 2GiB, or a number of MiB (default: all)",
    "opt_level": "builder optimisation level, 0 (quick build) to 5 (longest search for fast kernels); default 3",
    "timing_cache": "file that keeps what the builder timed, read and written, for quicker builds of the same layers",
    "dla_core": "number of the DLA core to use; what it does not take stays on the GPU",
    "tf32": "true lets fp32 layers use TF32 tensor cores, which round inputs to 10 bits (default: false)",
}
CLASSIC = {
    "sparsity": "true lets layers whose weights are 2:4 sparse use sparse kernels (default: false)",
    "version_compatible": "true builds an engine that later versions of TensorRT load, too (default: false)",
    "hardware_compatibility": f"GPUs besides the one it is built on: {', '.join(COMPATIBILITY)} (default: none)",
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KB|KiB|MB|MiB|GB|GiB)?", re.IGNORECASE)
_UNITS = {"b": 1, "kb": 10**3, "kib": 2**10, "mb": 10**6, "mib": 2**20, "gb": 10**9, "gib": 2**30}
_LEVELS = range(6)


def settings(options: Mapping[str, Any], target: str) -> dict[str, Any]:
    """The values that `engine.configure` takes, of what was given. Raises UsageError (DK527) for a bad value."""
    found: dict[str, Any] = {"tf32": flag(options, "tf32", target)}
    if "workspace" in options:
        found["workspace"] = size(options["workspace"], "workspace", target)
    if "opt_level" in options:
        found["opt_level"] = number(options["opt_level"], "opt_level", target)
        if found["opt_level"] not in _LEVELS:
            raise _bad("opt_level", options["opt_level"], "a level from 0 to 5", target, "opt_level=3")
    if "dla_core" in options:
        found["dla_core"] = number(options["dla_core"], "dla_core", target)
    if "timing_cache" in options:
        found["timing_cache"] = _cache_file(options["timing_cache"], target)
    for name in ("sparsity", "version_compatible"):
        if flag(options, name, target):
            found[name] = True
    if options.get("hardware_compatibility") not in (None, "none"):
        level = str(options["hardware_compatibility"]).lower()
        if level not in COMPATIBILITY:
            known = ", ".join(("none", *COMPATIBILITY))
            raise _bad("hardware_compatibility", level, f"one of {known}", target, "hardware_compatibility=ampere_plus")
        found["hardware_compatibility"] = level
    return found


def flag(options: Mapping[str, Any], name: str, target: str, *, default: bool = False) -> bool:
    """An option that is true or false. Raises UsageError (DK527) for anything else."""
    value = options.get(name, default)
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in {"true", "1", "yes", "on"}:
        return True
    if text in {"false", "0", "no", "off"}:
        return False
    raise _bad(name, value, "true or false", target, f"{name}=true")


def number(value: Any, name: str, target: str) -> int:
    """A whole number, 0 or more. Raises UsageError (DK527)."""
    text = str(value).strip()
    if isinstance(value, bool) or not (text.isascii() and text.isdecimal()):
        raise _bad(name, value, "a whole number", target, f"{name}=0")
    return int(text)


def size(value: Any, name: str, target: str) -> int:
    """Bytes of `512MiB`, `2GiB` or a bare number of MiB. Raises UsageError (DK527)."""
    found = _SIZE.fullmatch(str(value).strip()) if not isinstance(value, bool) else None
    given = round(float(found[1]) * _UNITS[(found[2] or "MiB").lower()]) if found else 0
    if given <= 0:
        raise _bad(name, value, "a size such as 512MiB", target, f"{name}=2GiB")
    return given


def _cache_file(value: Any, target: str) -> str:
    path = Path(str(value))
    if path.is_dir() or not path.resolve().parent.is_dir():
        raise _bad("timing_cache", value, "a file in a folder that exists", target, "timing_cache=layers.cache")
    return str(path)


def _bad(name: str, value: Any, wanted: str, target: str, example: str) -> UsageError:
    return UsageError(
        f"option {name!r} is {wanted}, not {str(value)!r}", code="DK527", target=target, hint=f"--option {example}"
    )


def lacking(problem: OptionError, target: str) -> UsageError:
    """An option that the installed version does not have, as our own error (DK592)."""
    option = "--custom-ops" if problem.option == "custom_ops" else f"--option {problem.option}"
    return UsageError(
        str(problem),
        code="DK231" if problem.option == "custom_ops" else "DK592",
        target=target,
        hint=f"leave {option} away, or install a version that has it",
    )
