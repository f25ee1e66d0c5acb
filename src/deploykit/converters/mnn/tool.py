"""Calls to MNN's own code (`child`), and what its log says went wrong."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit import io
from deploykit.artifact import read_manifest
from deploykit.converters.mnn.child import look
from deploykit.converters.vendor_process import Finished, run_program
from deploykit.errors import InvalidFileError

if TYPE_CHECKING:
    from collections.abc import Sequence

NAME = "mnn"
_CHILD = "deploykit.converters.mnn.child"
_REFUSED = re.compile(r"These Op Not Support: (.*)")
_OPERATOR = re.compile(r"ONNX::(?:[\w.]+::)?(\w+)")


def versioned() -> str:
    """The installed version: `3.6.1`."""
    import importlib.metadata

    return importlib.metadata.version("MNN")


def call_converter(arguments: Sequence[str]) -> Finished:
    """Runs the converter with these arguments; its log says whether it worked, its exit code does not."""
    finished, _ = _call({"convert": list(arguments)})
    return finished


def look_into(path: Path) -> dict[str, Any]:
    """What `child` finds in a file. Raises InvalidFileError (DK528) for one that MNN does not load, or crashes on."""
    io.existing_file(path, "MNN model")
    finished, found = _call({"look": str(path.resolve())})
    if found is None:
        told = [line for line in finished.log if "nvalid" in line or line.startswith("Error")]
        why = told[-1].strip() if told else f"its loader {finished.how}"
        raise InvalidFileError(
            f"{path.name} is no whole MNN model: {why}",
            code="DK528",
            file=path,
            target=NAME,
            hint="copy it again, or convert it again",
        )
    facts: dict[str, Any] = found
    return facts


def interface_of(path: Path) -> dict[str, Any]:
    """What `look_into` finds, but for the inside. Raises InvalidFileError (DK528).

    A file that is byte for byte what its manifest describes loaded when it was made, and is looked into here.
    """
    claim = read_manifest(path) if path.is_file() else None
    if claim is None or claim.sha256 != io.digest([path]):
        return look_into(path)
    return look(str(path), inside=False)


def refused_operators(log: Sequence[str]) -> list[str]:
    """The ONNX operators that the converter's log says it does not have."""
    told = next((found[1] for line in log if (found := _REFUSED.search(line))), "")
    return _OPERATOR.findall(told)


def _call(request: dict[str, Any]) -> tuple[Finished, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        answer = folder / "answer.json"
        (folder / "request.json").write_text(json.dumps({**request, "answer": str(answer)}), encoding="utf-8")
        finished = run_program([sys.executable, "-m", _CHILD, str(folder / "request.json")], folder)
        return finished, json.loads(answer.read_text(encoding="utf-8")) if answer.is_file() else None
