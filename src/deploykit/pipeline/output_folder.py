"""The folder that a run writes into: checked first, held by one run at a time, gone again when nothing came of it."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
from typing import TYPE_CHECKING

from deploykit import io
from deploykit.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CACHE = ".cache"
_LOCK = "lock"
# What a lock that somebody else holds gives, on POSIX and on Windows.
_HELD = {errno.EACCES, errno.EAGAIN, errno.EDEADLK}


def check_folder(out: Path, *, force: bool) -> None:
    """The output folder is new, empty, or one that an earlier run made.

    Raises OutputError: DK120 for a folder with strangers in it, DK121 for something that is no folder, and what
    `io.check_output` raises.
    """
    if os.path.lexists(out) and not out.is_dir():
        what = "a file" if out.exists() else "a link to nothing"
        raise OutputError(
            f"the output folder is {what}: {out}", code="DK121", file=out, hint="choose another with --output"
        )
    ours = (out / CACHE).is_dir() or (out / "report.json").is_file()
    if out.is_dir() and any(out.iterdir()) and not ours and not force:
        raise OutputError(
            f"the output folder {out} holds files that no run made",
            code="DK120",
            file=out,
            hint="choose another with --output, or add --force",
        )
    if not out.exists():
        existing = next(parent for parent in out.absolute().parents if os.path.lexists(parent))
        io.check_output(existing / "probe", force=True)
    else:
        io.check_output(out / "report.json", force=True)


@contextlib.contextmanager
def held(out: Path) -> Iterator[None]:
    """Makes the folder and keeps it for this run alone; what stays empty goes away afterwards.

    The lock is the system's, so that it ends with a process that is killed; what such a process left unfinished in the
    cache is removed by the next run. Raises OutputError (DK127) when another run has the folder.
    """
    new = [folder for folder in (out, *out.absolute().parents) if not folder.exists()]
    (out / CACHE).mkdir(parents=True, exist_ok=True)
    path = out / CACHE / _LOCK
    lock = _locked(path)
    try:
        for leftover in (out / CACHE).glob("*/.*.tmp"):
            shutil.rmtree(leftover, ignore_errors=True)
        yield
    finally:
        _tidy(out, path, new)
        os.close(lock)


def _locked(path: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(descriptor)
        except OSError as problem:
            if problem.errno in _HELD:
                os.close(descriptor)
                raise OutputError(
                    f"another run is writing in {path.parent.parent}",
                    code="DK127",
                    file=path.parent.parent,
                    hint="wait for it to end, or choose another folder with --output",
                ) from problem
            return descriptor  # a file system without locks
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        os.close(descriptor)  # the run that had it has just removed it


def _lock(descriptor: int) -> None:
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _tidy(out: Path, lock: Path, new: list[Path]) -> None:
    cache = out / CACHE
    for folder in cache.iterdir():
        if folder.is_dir():
            with contextlib.suppress(OSError):  # not empty
                folder.rmdir()
    if list(cache.iterdir()) == [lock]:
        # Windows does not remove an open file: there it stays.
        with contextlib.suppress(OSError):
            lock.unlink()
            cache.rmdir()
            for folder in new:
                folder.rmdir()
