"""The only door to ONNX graphs: load, save, describe, infer shapes, count. Graphs are `onnx_ir.Model`.

The functions are bound lazily, so that a missing or foreign file is refused before the ONNX library is imported.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deploykit.graph.counting import macs
    from deploykit.graph.files import check_kind
    from deploykit.graph.inventory import quantization, summary
    from deploykit.graph.naming import all_nodes, name_nodes
    from deploykit.graph.reading import check_file, load, read_proto
    from deploykit.graph.shapes import infer_shapes
    from deploykit.graph.signature import describe, interface, opset, precision_of
    from deploykit.graph.writing import save

_HOME: dict[str, str] = {
    "all_nodes": "naming",
    "check_file": "reading",
    "check_kind": "files",
    "describe": "signature",
    "infer_shapes": "shapes",
    "interface": "signature",
    "load": "reading",
    "macs": "counting",
    "name_nodes": "naming",
    "opset": "signature",
    "precision_of": "signature",
    "quantization": "inventory",
    "read_proto": "reading",
    "save": "writing",
    "summary": "inventory",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = found
    return found


__all__ = [
    "all_nodes",
    "check_file",
    "check_kind",
    "describe",
    "infer_shapes",
    "interface",
    "load",
    "macs",
    "name_nodes",
    "opset",
    "precision_of",
    "quantization",
    "read_proto",
    "save",
    "summary",
]
