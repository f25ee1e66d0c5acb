"""The other simplifiers, each as a job for a worker of its own, which does without the graph library."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.lazy import postpone_sympy, require, versions_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx

# onnxsim imports the graph library, too.
postpone_sympy()
# Results above this stay computed instead of stored; onnxsim's own default is 1.5 GB.
_ONNXSIM_LARGEST = "64KB"


def foreign_job(engine: str, model: str, output: str) -> dict[str, Any]:
    """Writes what another engine makes of the model at `output`, as it is; returns versions. Raises what it raises."""
    made = _FOREIGN[engine](Path(model))
    Path(output).write_bytes(made.SerializeToString(deterministic=True))
    return {"versions": versions_of(engine, "onnx")}


def _onnxsim(path: Path) -> onnx.ModelProto:
    onnxsim = require("onnxsim", "simplify", purpose="--engine onnxsim")
    # In memory, with a size limit: given paths, or without one, it writes a .data file beside its output unasked.
    simplified, _ = onnxsim.simplify(_proto(path), check_n=0, tensor_size_threshold=_ONNXSIM_LARGEST)
    return simplified


def _onnxslim(path: Path) -> onnx.ModelProto:
    onnxslim = require("onnxslim", "simplify", purpose="--engine onnxslim")
    with contextlib.suppress(AttributeError):
        onnxslim.utils.logger.setLevel("ERROR")
    return onnxslim.slim(_proto(path))


def _proto(path: Path) -> onnx.ModelProto:
    """The model as one message, external data inside; the file has been checked before."""
    import onnx

    return onnx.load(path)


_FOREIGN: dict[str, Callable[[Path], onnx.ModelProto]] = {"onnxsim": _onnxsim, "onnxslim": _onnxslim}
