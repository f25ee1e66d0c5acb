"""An `.aimodel` on disk: what it has to consist of, what deploykit keeps in it, and nothing that changes by itself."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from deploykit.artifact import TensorSpec
from deploykit.errors import InvalidFileError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

PROGRAM, HASH, METADATA = "main.mlirb", "main.hash", "metadata.json"
ENTRY = "main"
_KEY = "deploykit"
_CUSTOM = "creatorDefinedMetadata"
_MOST_METADATA = 1 << 24
_DATE = "19700101T000000Z"
# What Core AI has in place of types that it lacks, at the interface too.
NARROWED = {"int64": "int32", "uint64": "uint32", "float64": "float32"}


def save(
    program: Any,
    place: Path,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    bounds: Mapping[str, Sequence[Sequence[int | None]]],
) -> None:
    """Writes a `coreai.authoring.AIProgram` as an asset, with the model's interface in its metadata, and no date.

    bounds: of axes that vary, by input.
    """
    import contextlib
    import io

    with contextlib.redirect_stdout(io.StringIO()):
        program.save_asset(place)
    found = json.loads((place / METADATA).read_text(encoding="utf-8"))
    found["creationDate"] = _DATE
    known = {
        "inputs": [spec.as_dict() for spec in inputs],
        "outputs": [spec.as_dict() for spec in outputs],
        "bounds": {name: [list(axis) for axis in axes] for name, axes in bounds.items()},
    }
    # As text: its own reader takes no null.
    found.setdefault(_CUSTOM, {})[_KEY] = json.dumps(known, sort_keys=True)
    text = json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False)
    (place / METADATA).write_text(text + "\n", encoding="utf-8")


def expect_whole(place: Path) -> dict[str, Any]:
    """The asset's metadata; raises InvalidFileError (DK528) for a folder that is none, is damaged or leads outside."""
    if not place.is_dir():
        raise _invalid(place, "it is no folder")
    for inner in place.rglob("*"):
        # Devices and pipes would be read without an end.
        if not (inner.is_dir() or inner.is_file()) or not inner.resolve().is_relative_to(place.resolve()):
            raise _invalid(place, f"{inner.name} is no file of its own")
    for name in (PROGRAM, METADATA):
        if not (place / name).is_file():
            raise _invalid(place, f"it has no {name}")
    if (place / METADATA).stat().st_size > _MOST_METADATA:
        raise _invalid(place, f"its {METADATA} is larger than {_MOST_METADATA >> 20} MiB")
    try:
        found = json.loads((place / METADATA).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as problem:
        raise _invalid(place, f"its {METADATA} is no JSON: {problem}") from problem
    if not isinstance(found, dict):
        raise _invalid(place, f"its {METADATA} is no JSON object")
    if (place / HASH).is_file() and (place / HASH).read_bytes() != _digest(place / PROGRAM):
        raise _invalid(place, f"its {PROGRAM} is not the one that its {HASH} is of: it is cut off or was changed")
    return found


def _digest(file: Path) -> bytes:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").digest()


def kept(metadata: Mapping[str, Any]) -> tuple[list[TensorSpec], list[TensorSpec], dict[str, list[list[int | None]]]]:
    """Inputs, outputs and bounds that `save` wrote; nothing of an asset that was made elsewhere."""
    try:
        known = json.loads(metadata[_CUSTOM][_KEY])
        inputs, outputs = ([TensorSpec.from_dict(facts) for facts in known[kind]] for kind in ("inputs", "outputs"))
        bounds = {
            str(name): [[_limit(value) for value in axis] for axis in axes] for name, axes in known["bounds"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        return [], [], {}
    return inputs, outputs, bounds


def _limit(value: Any) -> int | None:
    return None if value is None else int(value)


def _invalid(place: Path, why: str) -> InvalidFileError:
    return InvalidFileError(f"{place.name} is no Core AI asset: {why}", code="DK528", file=place, target="coreai")
