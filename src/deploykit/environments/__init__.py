"""Managed environments: packages whose pins fight with ours live in an environment of their own, in a worker's reach.

`deploykit doctor --install NAME` makes one of the exact versions in `<name>-cp<python>.txt` beside this file, in the
user's cache folder. Its interpreter runs `worker.py`, so that vendor code there answers like vendor code here.
Standard library only.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit import io
from deploykit.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

# Overrides where environments are kept; the folder then holds one folder for each of them.
FOLDER_VARIABLE = "DEPLOYKIT_ENVIRONMENTS"
# Written last inside an environment: without it a folder is not one.
MARKER = "deploykit-environment.json"


@dataclasses.dataclass(frozen=True, slots=True)
class Environment:
    """One environment, described.

    distribution: what it is made for; its version is the environment's. serves: what it is used for, in words.
    megabytes: about how much it takes on disk, asked of the file system before anything is downloaded.
    """

    name: str
    distribution: str
    serves: str
    megabytes: int


# The literal table. Versions stand in `<name>-cp<major><minor>.txt`, one file for each Python they were tried with.
ENVIRONMENTS: Mapping[str, Environment] = {
    found.name: found
    for found in (
        Environment(
            "onnx2tf", "onnx2tf", "litert and savedmodel from ONNX: its numpy, onnx and TensorFlow are old", 2700
        ),
        Environment("litert-torch", "litert-torch", "litert from PyTorch: its typing-extensions are old", 2200),
    )
}


@dataclasses.dataclass(frozen=True, slots=True)
class State:
    """What there is of an environment on this machine.

    outdated: it is there with other versions than this deploykit wants, or for another Python.
    refusal: why it cannot be made here; "" when it can.
    """

    name: str
    path: Path
    serves: str
    wanted: str
    installed: str | None
    outdated: bool
    size_bytes: int
    refusal: str

    def as_dict(self) -> dict[str, Any]:
        """The row of `doctor`; `install` is null where it is there, or cannot be."""
        needed = self.installed is None or self.outdated
        return {
            "name": self.name,
            "installed": self.installed is not None and not self.outdated,
            "version": self.installed,
            "wanted": self.wanted or None,
            "size_bytes": self.size_bytes,
            "path": str(self.path),
            "serves": self.serves,
            "refused": self.refusal or None,
            "install": f"deploykit doctor --install {self.name}" if needed and not self.refusal else None,
        }


def environments_folder() -> Path:
    """Where environments are kept: $DEPLOYKIT_ENVIRONMENTS, or below the platform's folder for caches."""
    chosen = os.environ.get(FOLDER_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    return _cache_folder() / "deploykit" / "environments"


def _cache_folder() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    # The XDG specification has relative paths ignored.
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return given if given.is_absolute() else Path.home() / ".cache"


def get_environment(name: str) -> Environment:
    """The environment of that name; UsageError (DK560) where there is none."""
    if name not in ENVIRONMENTS:
        raise UsageError(
            f"there is no managed environment {name!r}",
            code="DK560",
            context=[f"{found.name}: {found.serves}" for found in ENVIRONMENTS.values()],
            hint="deploykit doctor lists them",
        )
    return ENVIRONMENTS[name]


def pins_file(name: str) -> Path:
    """The file of exact versions for this Python; it need not exist."""
    return Path(__file__).parent / f"{name}-cp{sys.version_info.major}{sys.version_info.minor}.txt"


def pins(name: str) -> list[str]:
    """The requirements of an environment, one exact version each; empty where this Python has none."""
    file = pins_file(name)
    if not file.exists():
        return []
    lines = (line.partition("#")[0].strip() for line in file.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line]


def digest_of_pins(name: str) -> str:
    """What tells the wanted versions from others."""
    return hashlib.sha256("\n".join(pins(name)).encode()).hexdigest()


def refusal(name: str) -> str:
    """Why the environment cannot be made with this Python; "" when it can."""
    if pins(name):
        return ""
    known = sorted(file.stem.rpartition("-cp")[2] for file in Path(__file__).parent.glob(f"{name}-cp*.txt"))
    versions = ", ".join(f"{tag[0]}.{tag[1:]}" for tag in known)
    return (
        f"the versions of {name} are known for Python {versions}, and this is "
        f"{sys.version_info.major}.{sys.version_info.minor}"
    )


def python_of(folder: Path) -> Path:
    """The interpreter inside an environment's folder."""
    return folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def state_of(name: str, *, measured: bool = True) -> State:
    """What there is of an environment here; UsageError (DK560) for an unknown name.

    measured: whether to add up its size, which reads the folder's tree.
    """
    described = get_environment(name)
    folder = environments_folder() / name
    facts = facts_of(folder)
    wanted = next((p.partition("==")[2] for p in pins(name) if p.partition("==")[0] == described.distribution), "")
    return State(
        name=name,
        path=folder,
        serves=described.serves,
        wanted=wanted,
        installed=None if facts is None else facts.get("version"),
        outdated=facts is not None and facts.get("pins_sha256") != digest_of_pins(name),
        size_bytes=io.size_of(folder) if measured and facts is not None else 0,
        refusal=refusal(name),
    )


def facts_of(folder: Path) -> dict[str, Any] | None:
    """What was written when the environment was complete; None where there is none, or half of one."""
    try:
        facts = json.loads((folder / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    # Its interpreter is a link to the one that made it: gone with an upgrade of Python, the environment is gone, too.
    return facts if isinstance(facts, dict) and python_of(folder).exists() else None


def is_ready(name: str) -> bool:
    """Whether work can be done in it now; reads one small file."""
    found = state_of(name, measured=False)
    return found.installed is not None and not found.outdated


def interpreter_of(name: str, purpose: str) -> str:
    """The interpreter of a complete environment.

    Raises UnavailableError (DK561) with the command that makes it, or the reason why it cannot be made here.
    """
    found = state_of(name, measured=False)
    if found.installed is not None and not found.outdated:
        return str(python_of(found.path))
    if found.refusal:
        raise UnavailableError(
            f"{purpose} needs the managed environment {name!r}, and {found.refusal}",
            code="DK561",
            hint="install deploykit for one of these versions of Python",
        )
    why = (
        "is not installed" if found.installed is None else f"has other versions than this deploykit uses ({found.path})"
    )
    raise UnavailableError(
        f"{purpose} needs the managed environment {name!r}, which {why}",
        code="DK561",
        hint=f"deploykit doctor --install {name}",
    )
