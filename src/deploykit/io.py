"""Files: digests, safe paths, and outputs that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.errors import InvalidFileError, ModelError, OutputError, VendorError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# File systems hold 255 bytes (not characters) in a name, and manifest and data file add their suffixes to it.
_NAME_LIMIT = 255
_MANIFEST = ".deploykit.json"
_ROOM = len(_MANIFEST)
_TEMPORARY = ".tmp"  # how `staged` and `scratch_folder` end the names of their folders
# Windows has no EDQUOT; EFBIG is what RLIMIT_FSIZE gives.
_NO_SPACE = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}
_FULL = 64 << 10  # bytes; buffered writers give up a block before the last one


def file_sha256(path: Path) -> str:
    """Hex SHA-256 of a file, read in pieces."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest(paths: Iterable[Path]) -> str:
    """One file: its plain SHA-256, as `sha256sum` prints it. Several, or a folder: SHA-256 over `name digest` lines."""
    members = list(paths)
    if len(members) == 1 and members[0].is_file():
        return file_sha256(members[0])
    lines = []
    for member in members:
        files = [member] if member.is_file() else sorted(p for p in member.rglob("*") if p.is_file())
        lines += [f"{file.relative_to(member.parent).as_posix()} {file_sha256(file)}\n" for file in files]
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return path.stat().st_size


def existing_file(path: Path, what: str = "file") -> Path:
    """The path, when it is a readable, non-empty file; InvalidFileError otherwise."""
    if not _exists(path):
        raise InvalidFileError(f"no such {what}: {path}", file=path, hint="check the path; quote it if it has spaces")
    if path.is_dir():
        raise InvalidFileError(f"{path} is a folder, and a {what} is needed", code="DK102", file=path)
    if not path.is_file():
        # Opening a pipe waits for ever, and a device may have no end.
        raise InvalidFileError(f"{path} is a pipe or device, and a {what} is needed", code="DK103", file=path)
    try:
        with path.open("rb") as stream:
            first = stream.read(1)
    except OSError as problem:
        raise InvalidFileError(f"cannot read {path}: {problem.strerror}", code="DK103", file=path) from problem
    if not first:
        raise InvalidFileError(
            f"{path} is empty (0 bytes)",
            code="DK104",
            file=path,
            hint="the download or export was cut off: make it again",
        )
    return path


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as problem:
        if problem.errno in (errno.ENAMETOOLONG, errno.EACCES, errno.EPERM):
            raise InvalidFileError(f"cannot read {path}: {problem.strerror}", code="DK103", file=path) from problem
        raise


def inside(folder: Path, location: str, what: str) -> Path:
    """`folder/location`, when that stays inside `folder` (no `..`, no absolute path, no link that leads out).

    Raises ModelError (DK113): model files are hostile input. A link may point elsewhere inside the same cache root, as
    Hugging Face's `snapshots/` do into `blobs/` of the same repository folder.
    """
    parts = location.replace("\\", "/").split("/")
    absolute = location.startswith(("/", "\\")) or (len(location) > 1 and location[1] == ":")
    if absolute or ".." in parts or "\0" in location or not location.strip():
        raise ModelError(
            f"{what} points outside its folder: {location!r}",
            code="DK113",
            context=["external data must lie beside the model, under a relative path without '..'"],
            hint="if you trust the file, load it with onnx and save it again with its data beside it",
        )
    path = folder / location
    try:
        resolved, root = path.resolve(), folder.resolve()
    except (OSError, RuntimeError) as problem:  # Python before 3.13 reports a circle of links as RuntimeError
        raise ModelError(f"{what} cannot be followed: {location!r} ({problem})", code="DK113") from problem
    if not resolved.is_relative_to(root) and not resolved.is_relative_to(_cache_root(folder)):
        raise ModelError(f"{what} is a link that leads out of its folder: {location!r} -> {resolved}", code="DK113")
    return path


def _cache_root(folder: Path) -> Path:
    """`.../models--org--name` for a folder below its `snapshots`, otherwise the folder itself."""
    absolute = folder.absolute()
    for parent in absolute.parents:
        if parent.name == "snapshots" and (parent.parent / "blobs").is_dir():
            return parent.parent.resolve()
    return absolute.resolve()


def check_output(path: Path, *, force: bool, suffix: str | None = None) -> Path:
    """Refuses an output that could not be written, before any work is done.

    Raises OutputError: DK120 exists without --force, DK121 folder missing or not a folder, DK122 not writable,
    DK123 wrong suffix.
    """
    if suffix is not None and path.suffix != suffix:
        raise OutputError(
            f"the output {path.name!r} should end in {suffix!r}",
            code="DK123",
            file=path,
            hint=f"-o {path.with_suffix(suffix) if path.suffix else path.name + suffix}",
        )
    if not path.parent.is_dir() and path.parent.exists():
        raise OutputError(
            f"the output cannot lie below {path.parent}, which is a file and not a folder",
            code="DK121",
            file=path,
            hint="choose a folder for the output",
        )
    if not path.parent.is_dir():
        raise OutputError(
            f"the output folder does not exist: {path.parent}",
            code="DK121",
            file=path,
            hint=f"mkdir -p '{path.parent}'",
        )
    longest = len(os.fsencode(path.name)) + _ROOM
    if longest > _NAME_LIMIT:
        raise OutputError(
            f"the output name is too long: {longest - _ROOM} bytes, {_NAME_LIMIT - _ROOM} are possible: {path.name!r}",
            code="DK126",
            file=path,
            hint="choose a shorter name: the manifest beside it has the same name with a suffix",
        )
    if os.path.lexists(path) and not force:
        raise _exists_already(path)
    _check_writable(path.parent)
    return path


def _exists_already(path: Path) -> OutputError:
    return OutputError(f"the output exists: {path}", code="DK120", file=path, hint="add --force to replace it")


def _check_writable(folder: Path) -> None:
    # os.access says yes to root on a read-only mount: only an attempt tells.
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as problem:
        if is_no_space(problem):
            raise disk_full(folder) from problem
        raise OutputError(
            f"cannot write in the output folder {folder}: {problem.strerror}",
            code="DK122",
            file=folder,
            hint="choose another folder for the output, or make this one writable",
        ) from problem


@contextlib.contextmanager
def staged(final: Path, *, force: bool) -> Iterator[Path]:
    """Yields a path of the same name in a temporary sibling folder; on success everything there moves beside `final`.

    Files written next to the yielded path (weights, manifest) move along, the main file last. On any exception,
    KeyboardInterrupt too, nothing is published, and files that were already replaced come back.
    """
    check_output(final, force=force)
    folder = Path(tempfile.mkdtemp(prefix=f".{final.name[:40]}.", suffix=_TEMPORARY, dir=final.parent))
    try:
        with no_space_named(final):
            yield folder / final.name
            publish(folder, final, force=force)
    except (InvalidFileError, VendorError) as problem:  # a vendor that does not say, or only in its log
        if _cut_off(problem, folder):
            raise disk_full(final) from problem
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def publish(folder: Path, final: Path, *, force: bool = True) -> None:
    """Moves the entries of `folder` beside `final`, the main one last; all or nothing.

    Without `force`, files that appeared meanwhile and strangers under the names of its companions (`m.bin` beside
    `m.xml`) are not replaced: OutputError (DK120).
    """
    names = sorted((entry.name for entry in folder.iterdir()), key=lambda name: (name == final.name, name))
    if final.name not in names:
        raise OutputError(f"nothing was written for {final}", code="DK124", file=final)
    if not force:
        for name in names:
            # A manifest without its artifact claims nothing: it may go.
            if os.path.lexists(final.parent / name) and name != f"{final.name}{_MANIFEST}":
                raise _exists_already(final.parent / name)
    for name in names:
        there = final.parent / name
        if there.is_dir() and not there.is_symlink() and not (folder / name).is_dir():
            raise OutputError(
                f"a folder is in the place of the output: {there}",
                code="DK120",
                file=there,
                hint="--force replaces files; remove the folder yourself, or choose another name",
            )
    backup, undone = folder / ".replaced", folder / ".undone"
    backup.mkdir()
    undone.mkdir()
    try:
        for name in names:
            destination = final.parent / name
            if os.path.lexists(destination):
                destination.rename(backup / name)
            (folder / name).rename(destination)
    except BaseException:
        # An interrupt can fall between any two lines, so what happened is read from the disk.
        for name in names:
            destination = final.parent / name
            if not os.path.lexists(folder / name):
                destination.rename(undone / name)
            if os.path.lexists(backup / name):
                (backup / name).rename(destination)
        raise


@contextlib.contextmanager
def no_space_named(path: Path) -> Iterator[None]:
    """Turns 'no space left' and 'file too large' into an OutputError that names the output."""
    try:
        yield
    except OSError as problem:
        if is_no_space(problem):
            raise disk_full(path) from problem
        raise
    except OutputError as problem:
        if problem.code == "DK125":  # a worker knows at most the temporary name
            raise disk_full(path) from problem
        raise


def _cut_off(problem: InvalidFileError | VendorError, folder: Path) -> bool:
    """Whether a full disk is behind it: the vendor's log says so, or a file made in the full `folder` is not whole."""
    if isinstance(problem, VendorError):
        return any(os.strerror(code) in line for line in problem.log for code in _NO_SPACE)
    return folder.resolve() in Path(str(problem.file)).resolve().parents and shutil.disk_usage(folder).free < _FULL


def copy_entry(source: Path, destination: Path) -> None:
    """Copies a file, or a folder with everything in it."""
    if source.is_dir():
        shutil.copytree(source, destination)
    else:
        shutil.copy2(source, destination)


def disk_full(path: object) -> OutputError:
    """The error for an output that did not fit; nothing of it is left."""
    return OutputError(
        f"no space left for {path}: nothing was written",
        code="DK125",
        file=path,
        hint="free some space (df -h), raise the file size limit (ulimit -f), or choose another folder",
    )


def is_no_space(problem: OSError) -> bool:
    """Whether the error means a full disk, quota or file size limit; of a folder's copy, one of its files' errors."""
    if isinstance(problem, shutil.Error):  # has no errno: a list of (source, destination, what was said)
        rows = problem.args[0] if problem.args and isinstance(problem.args[0], list) else []
        return any(f"[Errno {code}]" in str(row[-1]) for row in rows for code in _NO_SPACE)
    return problem.errno in _NO_SPACE


def write_text(path: Path, text: str, *, force: bool) -> None:
    """Writes a text file whole or not at all."""
    with staged(path, force=force) as temporary:
        temporary.write_text(text, encoding="utf-8")


def scratch_folder(near: Path | None = None) -> tempfile.TemporaryDirectory[str]:
    """A temporary folder for intermediate files; beside `near` when renames must stay on its file system."""
    return tempfile.TemporaryDirectory(
        prefix=".deploykit-", suffix=_TEMPORARY, dir=None if near is None else os.fspath(near)
    )


def keep_files(value: Any, folder: Path) -> Any:
    """JSON where each path in a folder of `staged` or `scratch_folder`, which go away, leads to a copy in `folder`."""
    if isinstance(value, dict):
        return {key: keep_files(item, folder) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [keep_files(item, folder) for item in value]
    if not isinstance(value, str) or _TEMPORARY not in value:
        return value
    path = Path(value)
    for parent in path.parents:
        if parent.name.startswith(".") and parent.name.endswith(_TEMPORARY):
            copy = folder / parent.name.lstrip(".")
            if not copy.exists():
                shutil.copytree(parent, copy, symlinks=True)
            return str(copy / path.relative_to(parent))
    return value
