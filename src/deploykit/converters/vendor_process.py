"""A vendor's program, or code of its that may end the process, run as a child that ends with us (POSIX)."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


@dataclasses.dataclass(frozen=True, slots=True)
class Finished:
    """How it ended. code: exit code, negative for a signal. log: what it printed, line by line."""

    code: int
    log: tuple[str, ...]

    @property
    def how(self) -> str:
        """In words: `ended with exit code 3`, `crashed with SIGSEGV`."""
        if self.code >= 0:
            return f"ended with exit code {self.code}"
        with contextlib.suppress(ValueError):
            return f"crashed with {signal.Signals(-self.code).name}"
        return f"crashed with signal {-self.code}"


def run_program(command: Sequence[str], folder: Path) -> Finished:
    """Runs a command in a folder without input; it is killed when this process is."""
    ended = subprocess.run(
        list(command),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        preexec_fn=END_WITH_PARENT,
    )
    text = ended.stdout.decode("utf-8", errors="replace")
    return Finished(ended.returncode, tuple(line.rstrip() for line in text.splitlines() if line.strip()))


def _end_with_parent() -> None:
    # The worker may be killed while the vendor works: nobody else would end what it started.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


# `preexec_fn` of a process that is to end with this one, however this one ends.
END_WITH_PARENT = _end_with_parent if sys.platform == "linux" else None
