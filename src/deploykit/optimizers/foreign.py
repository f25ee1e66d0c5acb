"""The other simplifiers, each as a job for a worker of its own, which does without the graph library."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.lazy import import_part, installed, lasting, missing, postpone_sympy, require, versions_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import onnx

# onnxsim imports the graph library, too.
postpone_sympy()
# Results above this stay computed instead of stored; onnxsim's own default is 1.5 GB.
_ONNXSIM_LARGEST = "64KB"


def foreign_job(engine: str, model: str, output: str) -> dict[str, Any]:
    """Writes what another engine makes of the model at `output`, as it is; returns versions, nodes, bytes.

    Raises what the engine raises.
    """
    made = _FOREIGN[engine](Path(model))
    size = Path(output).write_bytes(made.SerializeToString(deterministic=True))
    nodes = _count([made.graph, *made.functions])
    return {"versions": versions_of(engine, "onnx"), "nodes": nodes, "bytes": size}


def _count(scopes: Iterable[Any]) -> int:
    """Nodes that compute, as `engines.count_nodes` counts them."""
    return sum(
        (node.op_type != "Constant") + _count(body for attribute in node.attribute for body in _bodies(attribute))
        for scope in scopes
        for node in scope.node
    )


def _bodies(attribute: onnx.AttributeProto) -> list[onnx.GraphProto]:
    return [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


def _onnxsim(path: Path) -> onnx.ModelProto:
    if not installed("onnxsim"):
        raise missing("onnxsim", "simplify", "--engine onnxsim")
    with lasting():  # of the package's 200 modules it takes 15
        simplifier = import_part("onnxsim", "onnx_simplifier")
    # In memory, with a size limit: given paths, or without one, it writes a .data file beside its output unasked.
    simplified, _ = simplifier.simplify(_proto(path), check_n=0, tensor_size_threshold=_ONNXSIM_LARGEST)
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
