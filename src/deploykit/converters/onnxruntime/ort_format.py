"""ONNX Runtime's own format (.ort), and the operators that a minimal build needs for it (runs in workers)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from deploykit import graph, io
from deploykit.errors import VendorError
from deploykit.isolation import run_alone

if TYPE_CHECKING:
    import onnx_ir as ir

FORMAT = "ort"
_CONFIG = ".required_operators.config"
_TYPED_CONFIG = ".required_operators_and_types.config"
_LEVEL = "ORT_CONVERT_ONNX_MODELS_TO_ORT_OPTIMIZATION_LEVEL"
_LEVELS = {"none": "disable"}


def write_ort(model: ir.Model, output: Path, level: str, library: str | None, *, types: bool) -> str:
    """Writes `output`, and beside it the list of operators for ONNX Runtime's build script, whose name is returned.

    ONNX Runtime lists weights in the order of a table that is keyed by addresses, so its tool works in a process that
    has the same ones every time, on a path of the same length.
    Raises VendorError when the tool fails.
    """
    with io.scratch_folder() as scratch:
        source = Path(scratch) / "model.onnx"
        graph.save(model, source)
        made: list[str] = run_alone(
            "onnxruntime-ort",
            f"{__name__}:tool_job",
            {"model": str(source), "level": level, "library": library, "types": types},
        )
        written, listed = map(Path, made)
        text = listed.read_text(encoding="utf-8")
        io.copy_entry(written, output)
    config = output.with_suffix(_TYPED_CONFIG if types else _CONFIG)
    # The tool names the file by its place, which goes away.
    config.write_text(text.replace(str(written), output.name), encoding="utf-8")
    return config.name


def tool_job(model: str, level: str, library: str | None, types: bool) -> list[str]:
    """Calls ONNX Runtime's own tool in this process; the paths that it wrote: model, operators.

    Raises VendorError when it fails.
    """
    os.environ[_LEVEL] = _LEVELS.get(level, level)
    from onnxruntime.tools import convert_onnx_models_to_ort as tool

    source = Path(model)
    folder = source.parent.resolve() / "made"
    try:
        tool.convert_onnx_models_to_ort(
            source,
            output_dir=folder,
            optimization_styles=[tool.OptimizationStyle.Fixed],
            custom_op_library_path=Path(library) if library else None,
            enable_type_reduction=types,
        )
        return [str(next(folder.glob(pattern))) for pattern in ("*.ort", "*.config")]
    except Exception as problem:  # the tool passes on what sessions, flatbuffers and its own checks raise
        raise VendorError(
            f"ONNX Runtime does not write the model in its own format: {' '.join(str(problem).split())[:600]}",
            target="onnxruntime",
            hint="the format ends at 2 GB, and takes no operator without a CPU kernel",
        ) from problem
