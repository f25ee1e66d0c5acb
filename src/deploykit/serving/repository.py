"""Model repositories in the layout that Triton, OpenVINO Model Server and KServe load: `NAME/VERSION/model.onnx`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from deploykit.errors import InvalidFileError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = "config.pbtxt"
# The file in a version folder, by artifact format.
MODEL_FILES: dict[str, str] = {"onnx": "model.onnx", "openvino": "model.xml"}


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """One version of one model: its artifact, its name and its version."""

    path: Path
    name: str
    version: str


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


def is_repository(folder: Path) -> bool:
    """Whether everything in the folder belongs to a model repository (an empty folder is one)."""
    return all(
        entry.name.startswith(".") or entry.suffix == ".json" or (entry.is_dir() and bool(versions_of(entry)))
        for entry in folder.iterdir()
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
