"""Model repositories in the layout that Triton, OpenVINO Model Server and KServe load: `NAME/VERSION/model.onnx`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from deploykit import io
from deploykit.artifact import MANIFEST_SUFFIX
from deploykit.errors import InvalidFileError, OutputError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = "config.pbtxt"
VERSION = 1
_NAME_LIMIT = 200
# The file in a version folder, by artifact format.
MODEL_FILES: dict[str, str] = {"onnx": "model.onnx", "openvino": "model.xml"}


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """One version of one model: its artifact, its name and its version."""

    path: Path
    name: str
    version: str


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


def find(folder: Path) -> Found:
    """The newest version of the only model in a repository, or of the model whose folder this is.

    Raises InvalidFileError (DK706) for a folder that is neither, UsageError (DK704) when there are several models.
    """
    if versions_of(folder):
        return _newest(folder)
    models = [entry for entry in _folders(folder) if versions_of(entry)]
    if len(models) > 1:
        raise UsageError(
            f"{folder} has {len(models)} models: {', '.join(model.name for model in models)}",
            code="DK704",
            file=folder,
            hint=f"name one of them: deploykit serve '{models[0]}'",
        )
    if not models:
        raise InvalidFileError(
            f"{folder} is no model repository: nothing in it is NAME/VERSION/{' or '.join(MODEL_FILES.values())}",
            code="DK706",
            file=folder,
            hint="deploykit package MODEL --as repository -o DIR makes one; an artifact file can be served as it is",
        )
    return _newest(models[0])


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


def _newest(folder: Path) -> Found:
    versions = versions_of(folder)
    newest = max(versions)
    return Found(versions[newest], folder.resolve().name, str(newest))


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(entry for entry in folder.iterdir() if entry.is_dir())
    except OSError as problem:
        raise InvalidFileError(f"cannot read {folder}: {problem.strerror}", code="DK103", file=folder) from problem
