"""Calls to pnnx and to ncnn, each in a process of its own."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit import io
from deploykit.converters.ncnn.child import load
from deploykit.converters.ncnn.param import Layer, read_param
from deploykit.converters.vendor_process import Finished, run_program
from deploykit.errors import InvalidFileError, MissingDependencyError, ModelError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

NAME = "ncnn"
_CHILD = "deploykit.converters.ncnn.child"
# How pnnx's own test program feeds and reads the network: the only place where it says which axis is the batch.
_FED = re.compile(r"ex\.input\(\"in(\d+)\", ncnn\.Mat\(in\d+\.numpy\(\)(?:, batch_index=(\d+))?\)")
_READ = re.compile(r"out(\d+)\.numpy\((?:batch_index=(\d+))?\)")
_NO_BATCH = 233  # ncnn's word for it


@dataclasses.dataclass(frozen=True, slots=True)
class Translated:
    """What pnnx made. inputs, outputs: the batch axis of each, None where it has none."""

    layers: list[Layer]
    weights: Path
    inputs: dict[int, int | None]
    outputs: dict[int, int | None]


def versions() -> dict[str, str]:
    """Of both packages."""
    return {name: importlib.metadata.version(name) for name in ("ncnn", "pnnx")}


def translate(model: Path, shapes: Sequence[str], *, half: bool) -> tuple[Translated | None, Finished]:
    """Runs pnnx beside the model, where it leaves many files.

    shapes: one or two lists of `[1,3,64,64]f32`, the second one where sizes vary. half: weights in 16 bits.
    """
    named = [f"inputshape{number if number > 1 else ''}={text}" for number, text in enumerate(shapes, 1)]
    finished = run_program([str(_program()), model.name, *named, f"fp16={int(half)}"], model.parent)
    param, weights, script = (model.with_name(f"{model.stem}{end}") for end in (".ncnn.param", ".ncnn.bin", "_ncnn.py"))
    if finished.code != 0 or not (param.is_file() and weights.is_file() and script.is_file()):
        return None, finished
    text = script.read_text(encoding="utf-8", errors="replace")
    fed, read = (_axes(pattern, text) for pattern in (_FED, _READ))
    return Translated(read_param(param), weights, fed, read), finished


def unknown_layers(layers: Iterable[Layer]) -> list[str]:
    """Types of layers that the installed ncnn does not have: pnnx leaves what it cannot translate as it is."""
    import ncnn

    return sorted({layer.type for layer in layers if ncnn.layer_to_index(layer.type) < 0})


def look_into(path: Path, *, trusted: bool = False) -> tuple[list[Layer], Mapping[str, Any]]:
    """The layers of a network, and the names of its inputs and outputs.

    trusted: it loaded when it was made, and may be loaded in this process.
    Raises InvalidFileError (DK528) for a damaged one, ModelError (DK203) where its .bin is missing.
    """
    io.existing_file(path, "ncnn network")
    layers = read_param(path)
    weights = path.with_suffix(".bin")
    if not weights.is_file():
        raise ModelError(
            f"{path.name} needs its weights beside it, and {weights.name} is missing",
            code="DK203",
            file=path,
            target=NAME,
            hint=f"copy {weights.name} too, or convert again",
        )
    if trusted:
        return layers, load(str(path), str(weights))
    unknown = unknown_layers(layers)
    why, found = f"this ncnn has no layer {unknown[0]}" if unknown else "", None
    if not unknown:
        finished, found = _call({"param": str(path.resolve()), "weights": str(weights.resolve())})
        why = f"its loader {finished.how}" if found is None else str(found.get("problem", ""))
    if why:
        raise InvalidFileError(
            f"{path.name} is no whole ncnn network: {why}",
            code="DK528",
            file=path,
            target=NAME,
            hint="copy both files again, or convert again",
        )
    return layers, found or {}


def _program() -> Path:
    """The program of pnnx: its Python package would import PyTorch."""
    found = importlib.util.find_spec("pnnx")
    folder = Path(found.origin).parent if found is not None and found.origin is not None else None
    program = folder / ("pnnx.exe" if sys.platform == "win32" else "pnnx") if folder is not None else None
    if program is None or not program.is_file():
        raise MissingDependencyError("pnnx is not installed", hint="pip install 'deploykit[ncnn]'")
    return program


def _axes(pattern: re.Pattern[str], text: str) -> dict[int, int | None]:
    return {
        int(number): None if axis is None or int(axis) == _NO_BATCH else int(axis)
        for number, axis in ((found[1], found[2]) for found in pattern.finditer(text))
    }


def _call(request: Mapping[str, Any]) -> tuple[Finished, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        answer = folder / "answer.json"
        (folder / "request.json").write_text(json.dumps({**request, "answer": str(answer)}), encoding="utf-8")
        finished = run_program([sys.executable, "-m", _CHILD, str(folder / "request.json")], folder)
        return finished, json.loads(answer.read_text(encoding="utf-8")) if answer.is_file() else None
