"""Making and removing managed environments: whole or not at all, one at a time, by the user's own pip configuration."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from deploykit import io
from deploykit.environments import (
    MARKER,
    State,
    digest_of_pins,
    environments_folder,
    get_environment,
    pins_file,
    python_of,
    refusal,
    state_of,
)
from deploykit.errors import OutputError, UnavailableError
from deploykit.progress import OnProgress, Progress, silent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_LAST_LINES = 12
_HELD = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)
_STAGING = ".making-"
# pip's lines that say what it is doing.
_STEPS = ("Collecting ", "Downloading ", "Processing ", "Using cached ", "Installing collected packages")


def install(name: str, *, force: bool = False, on_progress: OnProgress = silent) -> State:
    """Makes the environment where it is not whole and current, and returns what there is then.

    force: makes it again in any case. Another install of it is waited for.
    Raises UsageError (DK560) for an unknown name; UnavailableError (DK561) where this Python has no versions for it,
    (DK562) with pip's last lines where it cannot be made; OutputError where its folder cannot be written. Nothing is
    left of one that was not finished.
    """
    described = get_environment(name)
    if refused := refusal(name):
        raise UnavailableError(refused, code="DK561", hint="install deploykit for one of these versions of Python")
    with _locked(name, on_progress) as root:
        found = state_of(name)
        if found.installed is not None and not found.outdated and not force:
            return found
        for left in root.glob(f"{_STAGING}{name}-*"):  # of a run that was killed
            shutil.rmtree(left, ignore_errors=True)
        _require_space(root, name, described.megabytes)
        staging = Path(tempfile.mkdtemp(prefix=f"{_STAGING}{name}-", dir=root))
        try:
            _make(name, staging, on_progress)
            _publish(staging, root / name)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return state_of(name)


def remove(name: str) -> State:
    """Deletes the environment, half-made ones of its name too, and returns what there was (installed null: nothing)."""
    get_environment(name)
    found = state_of(name)
    if not environments_folder().is_dir():
        return found
    with _locked(name, silent) as root:
        # Renamed first, so that no half of it can be taken for whole.
        if (root / name).exists():
            doomed = Path(tempfile.mkdtemp(prefix=f"{_STAGING}{name}-", dir=root))
            (root / name).rename(doomed / name)
        for left in root.glob(f"{_STAGING}{name}-*"):
            shutil.rmtree(left)
    with contextlib.suppress(OSError):  # a lock that another run holds; a folder with other environments
        (environments_folder() / f".{name}.lock").unlink()
        environments_folder().rmdir()
    return found


def _make(name: str, folder: Path, on_progress: OnProgress) -> None:
    own_pip = importlib.util.find_spec("pip") is not None
    on_progress(Progress(f"making {name}", "python -m venv"))
    # Where ours has pip, the environment needs none of its own.
    _run([sys.executable, "-m", "venv", *(["--without-pip"] if own_pip else []), str(folder)], name, on_progress)
    python = str(python_of(folder))
    pip = [sys.executable, "-m", "pip", "--python", python] if own_pip else [python, "-m", "pip"]
    _run(
        [
            *pip,
            "install",
            # Every version is pinned, and wheels only: nothing is resolved or built.
            "--no-deps",
            "--only-binary=:all:",
            "--disable-pip-version-check",
            "--no-input",
            "--progress-bar=off",
            "-r",
            str(pins_file(name)),
        ],
        name,
        on_progress,
    )
    on_progress(Progress(f"making {name}", "checking"))
    _run([*pip, "check", "--disable-pip-version-check"], name, on_progress)
    facts = {"name": name, "version": state_of(name).wanted, "pins_sha256": digest_of_pins(name)}
    with io.no_space_named(folder):
        (folder / MARKER).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def _publish(staging: Path, final: Path) -> None:
    """Takes the place of an older one; who reads it meanwhile finds the one, the other or none."""
    aside = staging.with_name(f"{staging.name}-old")
    if final.exists():
        final.rename(aside)
    staging.rename(final)
    shutil.rmtree(aside, ignore_errors=True)


def _run(arguments: Sequence[str], name: str, on_progress: OnProgress) -> None:
    """Runs a step; UnavailableError (DK562) with its last lines when it fails. Its processes end with ours."""
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    environment |= {"PYTHONIOENCODING": "utf-8", "PYTHONUNBUFFERED": "1"}
    lines: list[str] = []
    process = subprocess.Popen(
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,  # Ctrl-C is ours to answer
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    try:
        for line in process.stdout or ():
            lines.append(line.rstrip())
            if line.strip().startswith(_STEPS):
                on_progress(Progress(f"making {name}", " ".join(line.split()[:2])))
        process.wait()
    except BaseException:
        _end(process)
        raise
    if process.returncode:
        raise _failure(name, lines, process.returncode)


def _end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(OSError):
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _failure(name: str, lines: Sequence[str], status: int) -> UnavailableError:
    told = [line for line in lines if line.strip()]
    errors = [line for line in told if line.startswith("ERROR:")]
    text = "\n".join(told)
    if "No space left on device" in text or "Disk quota exceeded" in text:
        reason, hint = "the disk is full", "free some, or name another folder with DEPLOYKIT_ENVIRONMENTS"
    elif "ensurepip" in text:
        reason = "this Python cannot make environments (its venv has no ensurepip)"
        hint = "install pip beside deploykit, or the system's package for venv (Debian: python3-venv)"
    elif any(
        sign in text
        for sign in (
            "NewConnectionError",
            "NameResolutionError",
            "Failed to establish",
            "ConnectTimeoutError",
            "ProxyError",
        )
    ):
        reason = "the package index cannot be reached"
        hint = "connect to it, or give pip another one (pip config set global.index-url URL), and try again"
    elif errors:
        reason = errors[0].removeprefix("ERROR:").strip()
        hint = "pip's own configuration decides where packages come from: pip config list"
    else:
        reason, hint = (
            f"exit code {status}",
            "pip's own configuration decides where packages come from: pip config list",
        )
    return UnavailableError(
        f"the managed environment {name!r} could not be made: {reason}",
        code="DK562",
        context=told[-_LAST_LINES:],
        hint=hint,
    )


def _require_space(root: Path, name: str, megabytes: int) -> None:
    free = shutil.disk_usage(root).free
    if free < megabytes * 1_000_000:
        raise UnavailableError(
            f"the managed environment {name!r} takes about {megabytes / 1000:.1f} GB, and {root} has "
            f"{free / 1e9:.1f} GB left",
            code="DK562",
            hint="free some, or name another folder with DEPLOYKIT_ENVIRONMENTS",
        )


@contextlib.contextmanager
def _locked(name: str, on_progress: OnProgress) -> Iterator[Path]:
    """The folder of environments, while no other process makes or removes this one."""
    root = environments_folder()
    try:
        root.mkdir(parents=True, exist_ok=True)
        descriptor = _hold(root / f".{name}.lock", name, on_progress)
    except OSError as problem:
        raise OutputError(
            f"{root} cannot be written: {problem.strerror or problem}",
            file=root,
            hint="name another folder with DEPLOYKIT_ENVIRONMENTS",
        ) from problem
    try:
        yield root
    finally:
        os.close(descriptor)


def _hold(path: Path, name: str, on_progress: OnProgress) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(descriptor)
        except OSError as problem:
            os.close(descriptor)
            if problem.errno not in _HELD:
                raise
            on_progress(Progress(f"waiting for another install of {name}"))
            time.sleep(0.2)
            continue
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        os.close(descriptor)  # whoever had it has just removed it


def _lock(descriptor: int) -> None:
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
