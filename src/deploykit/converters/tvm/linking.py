"""The linker that makes a library of LLVM's object files: the system's own compiler drives it."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

from deploykit.errors import UnavailableError, VendorError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_DRIVERS = ("g++", "gcc", "clang++", "clang", "c++", "cc")


def driver() -> str:
    """The compiler that links. Raises UnavailableError (DK581) where there is none."""
    own = os.environ.get("CXX") or os.environ.get("CC")
    names = [own.split()[0]] if own else list(_DRIVERS)
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        raise UnavailableError(
            f"a library is linked by the system's C++ compiler, and there is none of {', '.join(names)}",
            code="DK581",
            target="tvm",
            hint="apt-get install g++ (Debian, Ubuntu), dnf install gcc-c++ (Fedora), xcode-select --install (macOS)",
        )
    return found


def linker(triple: str | None = None) -> Callable[[str, Sequence[str]], None]:
    """What `export_library` calls with the library's name and the object files. triple: another machine's, if any."""
    command = [driver(), *(["-target", triple] if triple else [])]

    def link(output: str, objects: Sequence[str], **_: object) -> None:
        # Identifiers and comments of the linker would say when and where it was linked.
        words = [*command, "-shared", "-fPIC", "-Wl,--build-id=none", "-o", output, *objects]
        ended = subprocess.run(words, capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            raise VendorError("linking failed", target="tvm", log=ended.stderr.splitlines()[-20:])

    link.object_format = "o"  # type: ignore[attr-defined]
    return link
