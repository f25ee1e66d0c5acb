"""The folder that a page is: its files, and the facts in it that everything else reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from deploykit import io
from deploykit.errors import ModelError

MARKER = "deploykit-web.json"
MODEL = "model.onnx"
SCHEMA = "deploykit.web/1"
ASSETS = Path(__file__).parent / "assets"
# Delivered with every page, and what a check serves in their place: nothing that a folder brings is executed here.
PAGE = ("index.html", "page.mjs", "model.mjs", "run.mjs")
# The script of ONNX Runtime Web for each backend, and what it loads beside itself.
SCRIPTS = {
    "wasm": ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm"),
    "webgpu": (
        "ort.webgpu.min.mjs",
        "ort-wasm-simd-threaded.asyncify.mjs",
        "ort-wasm-simd-threaded.asyncify.wasm",
    ),
    "webnn": (
        "ort.webgpu.min.mjs",
        "ort-wasm-simd-threaded.asyncify.mjs",
        "ort-wasm-simd-threaded.asyncify.wasm",
    ),
    "webgl": ("ort.all.min.mjs", "ort-wasm-simd-threaded.jsep.mjs", "ort-wasm-simd-threaded.jsep.wasm"),
}


def read_facts(folder: Path) -> dict[str, Any]:
    """The facts of a page's folder. Raises ModelError (DK528) for a folder that is no whole page."""
    try:
        facts = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        if facts["schema"] != SCHEMA or facts["backend"] not in SCRIPTS:
            raise ValueError(facts["schema"], facts["backend"])
        names = [str(facts["model"]), *map(str, facts["external"])]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as problem:
        raise _broken(folder, f"{MARKER} does not say what the page is made of ({problem})") from problem
    for name in names:
        if not io.inside(folder, name, MARKER).is_file():
            raise _broken(folder, f"{name} is missing")
    found: dict[str, Any] = facts
    return found


def _broken(folder: Path, why: str) -> ModelError:
    return ModelError(
        f"{folder.name} is not a whole ONNX Runtime Web folder: {why}",
        code="DK528",
        file=folder,
        target="onnxruntime-web",
        hint="convert again, and copy the folder as a whole",
    )
