"""`--custom-ops`: which extension library is meant for which target."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from deploykit import io
from deploykit.errors import UsageError
from deploykit.target import target_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from deploykit.target import Target

    CustomOps: TypeAlias = (
        str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | Mapping[str, str | os.PathLike[str]] | None
    )


def split_translations(given: CustomOps) -> tuple[tuple[Path, ...], CustomOps]:
    """Python files with ONNX forms of PyTorch's operators (`deploykit export` reads them), and everything else."""
    if given is None or hasattr(given, "items"):
        return (), given
    texts = [given] if isinstance(given, (str, os.PathLike)) else list(given)
    files = [Path(text) for text in texts if Path(text).suffix == ".py"]
    rest = [text for text in texts if Path(text).suffix != ".py"]
    return tuple(io.existing_file(file, "translations file") for file in files), rest


def extension_libraries(
    given: CustomOps, targets: Iterable[Target | None], *, besides: Iterable[Target] = ()
) -> dict[str, str]:
    """Absolute path of each target's library, by target name; what is loaded runs with the rights of the caller.

    given: FILE, TARGET=FILE, several of them, or files by target name. A FILE alone is for the only one of the targets
    that has extension libraries. besides: targets that take one only when it is given by name.
    Raises UsageError (DK232) when it is not clear for which, or when that target has none, and InvalidFileError for a
    file that is not there.
    """
    known = {target.name: target for target in targets if target is not None}
    extensible = [name for name, target in known.items() if target.custom_ops]
    known |= {target.name: target for target in besides}
    found: dict[str, str] = {}
    for name, file in _pairs(given, extensible):
        target = known.get(name)
        if target is None or not target.custom_ops:
            why = f"{target.title} has no extension libraries" if target else f"target {name!r} is not asked for"
            raise UsageError(f"--custom-ops {name}={file}: {why}", code="DK232", hint=_of(known.values()))
        if name in found:
            raise UsageError(f"--custom-ops names two libraries for {name}", code="DK232", hint="build one of both")
        found[name] = str(io.existing_file(Path(file), "extension library").absolute())
    return found


def _pairs(given: CustomOps, extensible: list[str]) -> list[tuple[str, str]]:
    if given is None:
        return []
    if hasattr(given, "items"):
        return [(name, os.fspath(file)) for name, file in given.items()]
    texts = [given] if isinstance(given, (str, os.PathLike)) else list(given)
    pairs = []
    for text in [os.fspath(item) for item in texts]:
        name, equals, file = text.partition("=")
        if equals and name in target_names():
            pairs.append((name, file))
        elif len(extensible) == 1:
            pairs.append((extensible[0], text))
        else:
            raise _unclear(text, extensible)
    return pairs


def _unclear(text: str, extensible: list[str]) -> UsageError:
    if not extensible:
        why = f"--custom-ops {text}: no target that is asked for has extension libraries"
        return UsageError(why, code="DK232", hint="leave --custom-ops away")
    return UsageError(
        f"--custom-ops {text} is for one target, and it is not clear which: {' or '.join(extensible)}",
        code="DK232",
        hint=f"--custom-ops {extensible[0]}={text}",
    )


def _of(targets: Iterable[Target]) -> str:
    """What the targets take, as a hint."""
    taken = [f"{target.name} takes {target.custom_ops}" for target in targets if target.custom_ops]
    return "; ".join(taken) or "leave --custom-ops away"


def with_extensions(
    options: Mapping[str, Mapping[str, object]] | None, libraries: Mapping[str, str]
) -> dict[str, dict[str, object]]:
    """Each target's options, by name, with its library as its jobs take it."""
    made = {name: dict(values) for name, values in (options or {}).items()}
    for name, library in libraries.items():
        made.setdefault(name, {})["custom_ops"] = library
    return made


def digests(libraries: Mapping[str, str]) -> dict[str, str]:
    """SHA-256 of each library: what of them goes into a manifest, for their paths differ from machine to machine."""
    return {name: io.file_sha256(Path(library)) for name, library in libraries.items()}
