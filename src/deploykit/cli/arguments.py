"""Checks of options before anything heavy is imported: files, suffixes, targets, specs, K=V pairs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from deploykit import io
from deploykit.cli.usage import nearest
from deploykit.errors import InvalidFileError, UsageError
from deploykit.target import format_of, get_target, parse_target, target_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deploykit.target import Target

_CALLABLE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_FILE_CALLABLE = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_]\w*)")
_RANDOM = re.compile(r"random(:\d+)?")
# As in `deploykit.exporters.torch_weights`, which brings PyTorch.
WEIGHTS = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".th")
# As in `deploykit.data.dataset`, which brings numpy.
READABLE = (".npz", ".npy", ".csv", ".jsonl", ".parquet")


def onnx_file(path: Path, what: str = "model") -> Path:
    """An existing, non-empty `.onnx` file; InvalidFileError otherwise."""
    io.existing_file(path, what)
    if path.suffix != ".onnx":
        raise InvalidFileError(
            f"{path} is not an ONNX file: its name ends in {path.suffix or 'nothing'!r}",
            code="DK831",
            file=path,
            hint="deploykit export makes an ONNX file from other sources",
        )
    return path


def artifact_file(path: Path, what: str = "artifact") -> Path:
    """An existing artifact, a file or a package folder, of a format that some target has."""
    if path.is_dir() and (path.suffix in _suffixes() or format_of(path) is not None):
        return path
    io.existing_file(path, what)
    if path.suffix not in _suffixes():
        raise UsageError(
            f"nothing here knows files like {path.name!r}",
            code="DK804",
            file=path,
            context=[f"suffixes: {' '.join(_suffixes())}"],
            hint="deploykit targets",
        )
    return path


def servable(path: Path) -> Path:
    """An artifact, or a folder that may be a model repository."""
    return path if path.is_dir() else artifact_file(path)


def _suffixes() -> list[str]:
    return sorted({".onnx", *(suffix for name in target_names() for suffix in get_target(name).suffixes)})


def source(text: str, *, trust: bool = False) -> str:
    """A SOURCE of a kind that `export` takes; the error says which way works for another kind."""
    from deploykit.exporters.sources import detect, takes

    takes(detect(text), trust=trust)
    return text


def data(text: str | None, option: str) -> str | None:
    """A DATA string whose file exists; whether it fits the model is seen later."""
    if text is None or _RANDOM.fullmatch(text):
        return text
    in_file = _FILE_CALLABLE.fullmatch(text)
    if in_file:
        io.existing_file(Path(in_file["file"]), "Python file")
        return text
    path = Path(text)
    if not path.exists() and _CALLABLE.fullmatch(text):
        return text
    if not path.exists():
        raise InvalidFileError(
            f"{option}: no such file or folder: {text}",
            file=text,
            hint="DATA is a .npz, .npy, .csv, .jsonl or .parquet file, a folder, module:callable, or random[:SEED]",
        )
    if path.is_file() and path.suffix.lower() not in READABLE:
        raise InvalidFileError(
            f"{option}: {text} is not a data file: its name ends in {path.suffix or 'nothing'!r}",
            code="DK831",
            file=text,
            context=[f"suffixes: {' '.join(READABLE)}"],
        )
    if path.is_file():
        io.existing_file(path, "data file")
    return text


def optional_file(path: Path | None, what: str, *suffixes: str) -> Path | None:
    """An option's file: absent, or existing with one of the suffixes."""
    if path is None:
        return None
    io.existing_file(path, what)
    if suffixes and path.suffix not in suffixes:
        raise InvalidFileError(f"the {what} {path} should end in {' or '.join(suffixes)}", code="DK831", file=path)
    return path


def one_target(text: str) -> Target:
    """The target that `NAME[@VERSION]` names; UsageError with the nearest name otherwise."""
    return parse_target(text)[0]


def many_targets(texts: Sequence[str], *, all_allowed: bool = False) -> list[str]:
    """Names of repeated or comma-separated targets, each checked; ["all"] stays where it is allowed."""
    names = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    for name in names:
        if not (all_allowed and name == "all"):
            parse_target(name)
    if not names:
        raise UsageError("no target is named", code="DK808", hint="deploykit targets lists them")
    return names


def inputs(texts: Sequence[str] | None) -> tuple[str, ...]:
    """`--input` values, each of the form NAME:DTYPE[DIMS]."""
    from deploykit.data.specs import parse_input

    for text in texts or ():
        parse_input(text)
    return tuple(texts or ())


def dim_ranges(texts: Sequence[str] | None) -> tuple[str, ...]:
    """`--dim` values of the form NAME=MIN..[MAX]."""
    from deploykit.data.specs import parse_dim

    for text in texts or ():
        parse_dim(text)
    return tuple(texts or ())


def dim_values(texts: Sequence[str] | None) -> tuple[str, ...]:
    """`--dim` values of the form NAME=VALUE."""
    from deploykit.data.specs import parse_fixed_dim

    for text in texts or ():
        parse_fixed_dim(text)
    return tuple(texts or ())


def pairs(texts: Sequence[str] | None, option: str) -> dict[str, str]:
    """`K=V` values as a mapping."""
    found: dict[str, str] = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"{option} {text!r} is not of the form K=V", code="DK807", hint=f"{option} name=value")
        found[key.strip()] = value
    return found


def one_of(value: str, names: Sequence[str], option: str) -> str:
    """The value, when it is one of the names; UsageError (DK807) with the nearest otherwise."""
    if value not in names:
        raise UsageError(
            f"{option}: there is no {value!r}",
            code="DK807",
            context=[f"values: {', '.join(names)}"],
            hint=nearest(value, list(names)),
        )
    return value


def profiles(texts: Sequence[str] | None) -> tuple[str, ...]:
    """`--profile` values of the form INPUT=MIN:OPT:MAX, as in `x=1x3x8:4x3x8:8x3x8`."""
    from deploykit.converters.profiles import parse_profiles

    parse_profiles(texts or ())
    return tuple(texts or ())
