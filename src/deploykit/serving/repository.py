"""Model repositories in the layout that Triton, OpenVINO Model Server and KServe load: `NAME/VERSION/model.onnx`."""

from __future__ import annotations

import dataclasses
import stat
from typing import TYPE_CHECKING

from deploykit import io
from deploykit.artifact import MANIFEST_SUFFIX
from deploykit.errors import InvalidFileError, OutputError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from deploykit.serving.repository_config import RepositoryConfig

CONFIG = "config.pbtxt"
VERSION = 1
_NAME_LIMIT = 200
# The file in a version folder, by artifact format.
MODEL_FILES: dict[str, str] = {"onnx": "model.onnx", "openvino": "model.xml"}


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One version of one model: its artifact, its name and its version.

    config: what the repository says about it. signature: of its files; another one means that they have changed.
    """

    path: Path
    name: str
    version: str
    config: RepositoryConfig | None = None
    signature: tuple[tuple[str, int, int], ...] = ()


def check_name(name: str) -> None:
    """Raises UsageError (DK703) for a name that cannot stand in an address or name a folder."""
    if (
        not name
        or len(name) > _NAME_LIMIT
        or any(sign in name for sign in "/\\")
        or not name.isprintable()
        or name[0] == "."
    ):
        raise UsageError(
            f"{name[:80]!r} is no name for a model: it stands in the address, /v2/models/NAME",
            code="DK703",
            hint="--name with letters, digits, '-', '_' and '.'",
        )


def is_model_folder(folder: Path) -> bool:
    """Whether a folder has versions of one model, rather than models."""
    return bool(versions_of(folder))


def entries_of(folder: Path, *, every: bool = False, broken: dict[str, str] | None = None) -> list[Entry]:
    """What is to be served of a repository, or of one model's own folder; `every` version instead with `every`.

    broken: gets by name why a model cannot be read, and the others are returned.
    Raises InvalidFileError (DK706) for a folder that is neither, and without `broken` DK726 for a configuration that
    cannot be read.
    """
    models = [folder] if is_model_folder(folder) else [entry for entry in _folders(folder) if versions_of(entry)]
    if not models:
        raise InvalidFileError(
            f"{folder} is no model repository: nothing in it is NAME/VERSION/{' or '.join(MODEL_FILES.values())}",
            code="DK706",
            file=folder,
            hint="deploykit package MODEL --as repository -o DIR makes one; an artifact file can be served as it is",
        )
    found: list[Entry] = []
    for model in models:
        try:
            found += _entries(model, every=every)
        except InvalidFileError as problem:
            if broken is None:
                raise
            broken[model.resolve().name] = problem.message
    return found


def _entries(folder: Path, *, every: bool) -> list[Entry]:
    from deploykit.serving.repository_config import RepositoryConfig, read_config

    file = folder / CONFIG
    config = read_config(file) if file.is_file() else None
    versions = versions_of(folder)
    chosen = sorted(versions) if every else (config or RepositoryConfig()).chosen(list(versions))
    name = folder.resolve().name
    return [
        Entry(versions[number], name, str(number), config, _signature(file, versions[number].parent))
        for number in chosen
    ]


def _signature(config: Path, version: Path) -> tuple[tuple[str, int, int], ...]:
    """Name, time and size of every file that decides what a version is; a file that goes meanwhile is left out."""
    found = []
    for file in (config, *sorted(version.rglob("*"))):
        try:
            facts = file.stat()
        except OSError:
            continue
        if stat.S_ISREG(facts.st_mode):
            found.append((file.name, facts.st_mtime_ns, facts.st_size))
    return tuple(found)


def versions_of(folder: Path) -> dict[int, Path]:
    """The artifact of each version in a model's folder; other folders and hidden files do not count."""
    found = {}
    for entry in _folders(folder):
        # As Triton: versions are numbers without leading zeros.
        if entry.name.isascii() and entry.name.isdecimal() and not entry.name.startswith("0"):
            for name in MODEL_FILES.values():
                if (entry / name).is_file():
                    found[int(entry.name)] = entry / name
    return found


def destination(output: Path, name: str, version: int, *, force: bool) -> Path:
    """The model's folder to write in a repository that may exist; nothing is created here.

    Raises OutputError: DK120 the model is there and `force` is not given, DK708 the folder holds other things or other
    versions, which are not replaced even with `force`.
    """
    if output.is_dir():
        foreign = [entry.name for entry in sorted(output.iterdir()) if not _belongs(entry)]
        if foreign:
            raise OutputError(
                f"{output} exists and is no model repository: it has {foreign[0]!r}",
                code="DK708",
                file=output,
                hint="choose a new folder; a repository that exists gets one more model",
            )
        others = [found for found in versions_of(output / name) if found != version] if (output / name).is_dir() else []
        if others:
            raise OutputError(
                f"{output / name} has version {', '.join(map(str, others))}, which would be lost",
                code="DK708",
                file=output / name,
                hint="choose another folder, and move the version folder over when it is good",
            )
        return io.check_output(output / name, force=force)
    io.check_output(output, force=False)
    return output / name


def _belongs(entry: Path) -> bool:
    """Whether an entry of a folder is a model's folder or a manifest beside one."""
    return (
        entry.name.startswith(".")
        or entry.name.endswith(MANIFEST_SUFFIX)
        or (entry.is_dir() and bool(versions_of(entry)))
    )


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(entry for entry in folder.iterdir() if entry.is_dir())
    except OSError as problem:
        raise InvalidFileError(f"cannot read {folder}: {problem.strerror}", code="DK103", file=folder) from problem
